"""A test that combines values says which; the trial notes how each combination ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis.errors import UnsatisfiedAssumption

from harness.trial import Excluded
from harness.worlds.base import SubjectFailure
from tests.trial.test_trial import Worlds, trial_on

DIMENSIONS = {"net": ("linear", "tied"), "mesh": ("1", "2")}
PLANNED = [{"net": net, "mesh": mesh} for net in ("linear", "tied") for mesh in ("1", "2")]


def told(trial: Any) -> Any:
    """What the record has of combinations."""
    return trial.facts.as_record(failed=False)["combinations"]


def test_each_combination_has_the_end_of_its_example() -> None:
    """One that passes, one that fails, one in which the test itself goes wrong, and one that is not begun."""
    trial = trial_on(Worlds())
    trial.combinations.plan(DIMENSIONS, PLANNED, [Excluded("not run", "needs 3 ranks", {"mesh": ("3",)})])
    for values, fact in ((PLANNED[1], True), (PLANNED[2], False)):
        with pytest.raises(SubjectFailure) if not fact else trial.offering(), trial.collecting_failures():
            trial.combinations.begin(DIMENSIONS, values)
            trial.holds(fact, "a fact")
    with pytest.raises(UnsatisfiedAssumption), trial.collecting_failures():
        trial.combinations.begin(DIMENSIONS, PLANNED[3])
        raise UnsatisfiedAssumption
    trial.combinations.blame({"net": "tied"}, "fails with net=tied; passes without")
    assert told(trial) == {
        "dimensions": {"net": ["linear", "tied"], "mesh": ["1", "2"]},
        "excluded": [{"kind": "not run", "why": "needs 3 ranks", "values": {"mesh": ["3"]}}],
        "tried": [[0, 0], [0, 1], [1, 0], [1, 1]],
        "ends": "-PF-",
        "causes": [{"values": {"net": "tied"}, "words": "fails with net=tied; passes without"}],
    }


def test_a_combination_that_failed_once_has_failed() -> None:
    """It may pass when it is tried again; and what was not planned is noted where it is tried."""
    trial = trial_on(Worlds())
    for fact in (False, True):
        try:
            with trial.collecting_failures():
                trial.combinations.begin(DIMENSIONS, PLANNED[3])
                trial.holds(fact, "a fact")
        except SubjectFailure:
            assert not fact
    assert (told(trial)["tried"], told(trial)["ends"]) == ([[1, 1]], "F")


def test_a_test_that_combines_nothing_records_nothing() -> None:
    """An example that names no values leaves the field empty, whichever way it ends."""
    trial = trial_on(Worlds())
    with trial.collecting_failures():
        trial.holds(True, "a fact")
    assert told(trial) == {}
