"""Time limits of a trial, and how its worlds end."""

from __future__ import annotations

import pytest

from harness.trial import TimeIsUp
from harness.worlds.base import Fate, Outcome, SubjectFailure
from tests.trial.test_trial import Ask, Worlds, number_of, trial_on

# Time limits and the end.


def test_the_time_limit_ends_the_run_in_progress() -> None:
    """While ranks run, their world is told to expire; their failure is what the test ends with."""
    worlds = Worlds()
    trial = trial_on(worlds)
    worlds.ends = lambda n, case: trial.time_is_up("time is up") or Outcome(n, Fate.HUNG, error="late")
    with pytest.raises(SubjectFailure, match="late"):
        trial.run(number_of, Ask())
    assert worlds.opened[0].expired == ["time is up", "time is up"]


def test_the_time_limit_interrupts_the_controller_between_runs() -> None:
    """While no rank is at work, the test itself is interrupted, with a sentence that says what to do."""
    with pytest.raises(TimeIsUp, match="give it more by --timeout"):
        trial_on(Worlds()).time_is_up("time is up")
        for _ in range(10**6):
            pass


def test_worlds_that_leave_cleanly_are_closed_without_a_word() -> None:
    """Closing ends every world."""
    worlds = Worlds()
    trial = trial_on(worlds)
    trial.run(number_of, Ask(world_size=1))
    trial.run(number_of, Ask(world_size=2))
    trial.close()
    assert all(world.is_closed for world in worlds.opened)


def test_a_rank_that_leaves_badly_fails_a_test_that_had_passed() -> None:
    """What happens on the way out is the subject's too."""
    worlds = Worlds()
    worlds.leaves = [Outcome(0, Fate.RETURNED), Outcome(1, Fate.CRASHED, error="exit code 7")]
    trial = trial_on(worlds)
    trial.run(number_of, Ask())
    with pytest.raises(
        SubjectFailure, match=r"after its work was done, rank 1 of 2 failed first .* exit code 7"
    ) as failed:
        trial.close()
    assert failed.value.cause == "crashed"
    assert [outcome.fate for outcome in trial.ranks.outcomes] == [Fate.RETURNED, Fate.CRASHED]


def test_after_a_known_failure_worlds_are_ended_whatever_they_say() -> None:
    """Discarding judges nothing."""
    worlds = Worlds()
    worlds.leaves = [Outcome(0, Fate.CRASHED)]
    trial = trial_on(worlds)
    trial.run(number_of, Ask())
    trial.discard()
    assert worlds.opened[0].is_closed
