"""A suite whose ranks kill their fork server, as the kernel may. Run by ``test_disturbed_results.py``."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.worlds.rank import Rank
from tests.plugin.samples import Number
from tests.worlds.programs.dying import kills_the_fork_server


def die_once(rank: Rank, case: Number, world: str) -> int:
    """Rank 1 kills the fork server, unless the folder named by ``SAMPLE_FOLDER`` says that it has done so before."""
    has_died = Path(os.environ["SAMPLE_FOLDER"]) / world
    if rank.number == 1 and not has_died.exists():
        has_died.touch()
        kills_the_fork_server(rank)
    return case.number


def die(rank: Rank, case: Number) -> int:
    """Rank 1 kills the fork server."""
    kills_the_fork_server(rank)
    return case.number


@requirement("disturbed/once")
@given(case=st.builds(Number, st.integers(0, 3)))
def test_survives(trial: Trial, case: Number) -> None:
    """Numbers come back."""
    trial.holds(trial.run(die_once, case, trial.kind) == [case.number] * 2, "the number comes back")


@requirement("disturbed/always")
@given(case=st.builds(Number, st.integers(0, 1000)))
def test_never_survives(trial: Trial, case: Number) -> None:
    """Numbers come back."""
    trial.holds(trial.run(die, case) == [case.number] * 2, "the number comes back")


@requirement("disturbed/afterwards")
def test_comes_afterwards(trial: Trial) -> None:
    """Ranks that start afterwards are unharmed."""
    trial.holds(trial.run(die_once, Number(3), trial.kind) == [3, 3], "the number comes back")
