"""Soft assertions: all comparisons of an example are reported, and the first failure is raised."""

from __future__ import annotations

import pytest

from harness.vendor import Feature
from harness.vendor.bounds import NotClaimed
from harness.worlds.base import SubjectFailure
from tests.trial.test_trial import Ask, Worlds, number_of, trial_on


def test_all_ranks_are_compared_before_a_disagreement_is_raised() -> None:
    """Within an example, comparisons go on after one that failed; the first failure is what is raised."""
    trial = trial_on(Worlds())
    with pytest.raises(SubjectFailure, match=r"^rank 0: it is 0, expected 1$"), trial.collecting_failures():
        for number, got in enumerate(trial.run(number_of, Ask(3, 3))):
            trial.agree(f"rank {number}", got, [1, 3, 7][number])
    reported = [(where, found.got, found.want) for where, found in trial.facts.differences]
    assert reported == [("rank 0", "0", "1"), ("rank 2", "6", "7")]
    assert trial.facts.checks == 3


def asks_for_hsdp() -> None:
    """As a test does that goes on to what is not claimed."""
    raise NotClaimed(Feature.HSDP)


def test_a_disagreement_comes_before_what_follows_from_it() -> None:
    """Neither an error of the test itself, ranks that would run again, nor what is not claimed hides what was wrong."""
    trial = trial_on(Worlds())
    with pytest.raises(SubjectFailure, match="no meeting"), trial.collecting_failures():
        trial.holds(False, "no meeting")
        raise KeyError("what would have been there")
    with pytest.raises(SubjectFailure, match="no end"), trial.collecting_failures():
        trial.holds(False, "no end")
        trial.run(number_of, Ask())
    assert trial.facts.world_sizes == set()
    with pytest.raises(SubjectFailure, match="no start"), trial.collecting_failures():
        trial.holds(False, "no start")
        asks_for_hsdp()
    assert not trial.facts.unclaimed


def test_differences_are_those_of_the_case_in_hand_and_not_too_many() -> None:
    """A case that is run later has its own; of one that differs everywhere some dozens are kept."""
    trial = trial_on(Worlds())
    for number, most in ((1, 32), (2, 32)):
        with pytest.raises(SubjectFailure), trial.collecting_failures():
            trial.run(number_of, Ask(number))
            for place in range(100):
                trial.agree(f"rank {place}", number, 0)
        assert [found.got for _, found in trial.facts.differences] == [str(number)] * most


def test_an_example_in_which_all_agrees_passes() -> None:
    """Nothing is raised where nothing failed, and an error of the test itself stays one."""
    trial = trial_on(Worlds())
    with trial.collecting_failures():
        trial.agree("rank 0", 1, 1)
    with pytest.raises(KeyError), trial.collecting_failures():
        raise KeyError("ours")
