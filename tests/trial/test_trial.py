"""A trial, on worlds that are made up: what it runs, what it counts, whom it blames, and when it stops looking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from harness.data.case import Case
from harness.trial import Trial, most_ranks
from harness.trial.shrinking import FirstFailure, Shrinking, failure_in
from harness.vendor import Feature
from harness.vendor.bounds import NotClaimed, claims
from harness.vendor.load import Subject
from harness.worlds.base import Fate, Outcome, SubjectFailure, World, error_summary, fate_of
from harness.worlds.rank import Rank


@dataclass(frozen=True)
class Ask(Case):
    """A number, for some ranks, in a dtype."""

    number: int = 0
    world_size: int = 2
    dtype: str = "float32"


class MadeUpWorld(World):
    """Ranks that run one after the other, here; ``ends`` may say instead what becomes of a rank."""

    def __init__(self, size: int, ends: Callable[[int, Ask], Outcome | None], leaves: list[Outcome]) -> None:
        self.kind, self.size, self._ends, self._leaves = "threads", size, ends, leaves
        self.runs: list[Ask] = []
        self.expired: list[str] = []
        self.is_closed = False

    def run(self, program: Any, *args: Any, deadline: float | None = None) -> tuple[Outcome, ...]:
        """Run the program rank by rank, unless something else was to become of the rank."""
        self.runs.append(args[0])
        return tuple(self._ends(number, args[0]) or self._outcome(number, program, args) for number in range(self.size))

    def _outcome(self, number: int, program: Any, args: Any) -> Outcome:
        rank = Rank(number, self.size, torch.device("cpu"), None, None)  # type: ignore[arg-type]  # not used
        try:
            return Outcome(number, Fate.RETURNED, program(rank, *args))
        except Exception as error:
            return Outcome(number, fate_of(error), error=f"{type(error).__name__}: {error}", at=float(number))

    def expire(self, reason: str) -> None:
        """Keep the reason."""
        self.expired.append(reason)

    def close(self) -> tuple[Outcome, ...]:
        """Say how the ranks left."""
        self.is_closed = True
        return tuple(self._leaves)


class Worlds:
    """Opens made-up worlds, and keeps them in ``opened``."""

    def __init__(self, ends: Callable[[int, Ask], Outcome | None] = lambda number, case: None) -> None:
        self.opened: list[MadeUpWorld] = []
        self.ends = ends
        self.leaves: list[Outcome] = []

    def __call__(self, kind: str, size: int, subject: Subject, **_: Any) -> World:
        """As ``open_world``."""
        self.opened.append(MadeUpWorld(size, self.ends, self.leaves))
        return self.opened[-1]

    @property
    def runs(self) -> list[Ask]:
        """What all of them were asked, world by world."""
        return [case for world in self.opened for case in world.runs]


def trial_on(worlds: Worlds, **shrinking: Any) -> Trial:
    """A trial on made-up worlds of up to three ranks."""
    return Trial("threads", Subject(), 3, shrinking=Shrinking(**shrinking), opener=worlds)


def number_of(rank: Rank, case: Ask) -> int:
    """The rank's number times the case's."""
    return rank.number * case.number


# Running.


def test_values_come_in_rank_order_and_worlds_are_kept_by_size() -> None:
    """One world is opened for each size, and serves every example of that size."""
    worlds = Worlds()
    trial = trial_on(worlds)
    values = [trial.run(number_of, Ask(number, size)) for number, size in ((5, 2), (6, 3), (7, 2))]
    assert values == [[0, 5], [0, 6, 12], [0, 7]]
    assert [world.size for world in worlds.opened] == [2, 3]
    assert (trial.facts.examples, trial.facts.world_sizes) == (3, {2, 3})


def test_one_case_can_run_on_worlds_of_several_sizes() -> None:
    """A case that is saved on two ranks and loaded on three is one example on two worlds."""
    trial, case = trial_on(Worlds()), Ask(5)
    assert [trial.run(number_of, case), trial.run(number_of, case, ranks=3)] == [[0, 5], [0, 5, 10]]
    assert (trial.facts.examples, trial.facts.world_sizes) == (1, {2, 3})


def test_equal_cases_are_one_example_unless_they_are_drawn_twice() -> None:
    """An oracle may hand out a case that it has kept; and what Hypothesis runs again is another example."""
    trial = trial_on(Worlds())
    for _ in range(2):
        with trial.collecting_failures():
            trial.run(number_of, Ask(5))
            trial.run(number_of, Ask(5))
    assert trial.facts.examples == 2


def test_the_first_cause_is_blamed_and_every_rank_is_kept() -> None:
    """Who failed first is named, whatever its number, and the outcomes of all ranks are kept for the record."""
    ends = {
        0: Outcome(0, Fate.INTERRUPTED, error="peer is gone", at=1.0),
        1: Outcome(1, Fate.CRASHED, error="9", at=2.0),
    }
    trial = trial_on(Worlds(lambda number, case: ends[number]))
    with pytest.raises(
        SubjectFailure, match=r"rank 1 of 2 failed first \(crashed\): 9\n  rank 0 interrupted"
    ) as failed:
        trial.run(number_of, Ask())
    assert failed.value.cause == "crashed"
    assert trial.ranks.outcomes == failed.value.outcomes == tuple(ends.values())
    assert trial.facts.case == Ask()


def test_what_torch_logs_with_a_message_is_no_part_of_it() -> None:
    """Rank, moment and line of a check that failed in C++ differ each time: without them the same errors are alike."""
    logged = "[rank0]:[F1125 02:37:17.629931250 ProcessGroupGloo.cpp:1537] Check failed: a == b (32 vs. 2)."
    assert error_summary(RuntimeError(logged)) == "RuntimeError: Check failed: a == b (32 vs. 2)."
    assert error_summary(RuntimeError("[rank0] is late")) == "RuntimeError: [rank0] is late"


def test_strategies_see_how_many_ranks_there_are() -> None:
    """While a test runs, world sizes can be drawn up to what its world has; after it, as before."""
    before = most_ranks()
    with trial_on(Worlds()).offering():
        assert most_ranks() == 3
    assert most_ranks() == before


def test_strategies_see_what_is_claimed() -> None:
    """While a test runs, features can be drawn from what its implementation claims; outside of any, from all."""
    with Trial("threads", Subject("harness.vendor.torch_fsdp2:implementation", "gloo"), 3).offering():
        assert Feature.FULLY_SHARD in claims()
        assert Feature.WRAP_POLICY not in claims()
    assert claims() == frozenset(Feature)


def test_a_test_may_look_at_failures_and_go_on() -> None:
    """What an example fails with is given back, is told as a failure of the trial by no other, and starts no budget."""
    trial = trial_on(Worlds())

    def judged(wanted: int) -> None:
        with trial.collecting_failures():
            trial.agree("ranks", trial.run(number_of, Ask(number=7)), [0, wanted])

    failed = trial.failure_of(lambda: judged(6))
    assert failed is not None
    assert failed.cause == "disagreement"
    assert trial.failure_of(lambda: judged(7)) is None
    assert trial.shrinking.first_failure is None


@pytest.mark.parametrize("feature", [Feature.MODULE_LISTS, None])
def test_a_case_that_is_left_out_is_none_of_the_failures(feature: Feature | None) -> None:
    """One that asks for what is not claimed, or for too many ranks, does not end a test that looks at several."""
    trial = trial_on(Worlds())

    def left_out() -> None:
        with trial.collecting_failures():
            if feature is not None:
                raise NotClaimed(feature)
            trial.needs(trial.most_ranks + 1)

    assert trial.failure_of(left_out) is None
    assert list(trial.facts.unclaimed) == ([] if feature is None else [str(feature)])


# Judging.


def test_a_disagreement_fails_with_its_place() -> None:
    """What differs by too much is the subject's failure, said with whose it is and where."""
    with pytest.raises(SubjectFailure, match=r"^rank 1: 'w'\[0\] is 3, expected 2$") as failed:
        trial_on(Worlds()).agree("rank 1", {"w": [3]}, {"w": [2]})
    assert failed.value.cause == "disagreement"


@pytest.mark.parametrize("fact", [True, False])
def test_a_fact_holds_or_fails_with_its_sentence(fact: bool) -> None:
    """A fact is one check; where it does not hold, its sentence is the message."""
    trial = trial_on(Worlds())
    if fact:
        trial.holds(fact, "they meet")
    else:
        with pytest.raises(SubjectFailure, match="they meet"):
            trial.holds(fact, "they meet")
    assert trial.facts.checks == 1


# Looking for a smaller failure.


def fails_from(limit: int, fate: Fate = Fate.RAISED) -> Worlds:
    """Worlds whose rank 1 fails on numbers from ``limit`` on."""
    return Worlds(lambda n, case: Outcome(n, fate, error="no") if n == 1 and case.number >= limit else None)


#: Time to look for a smaller failure, which is over when it begins.
SPENT = 1e-9


def search(trial: Trial) -> SubjectFailure:
    """Have Hypothesis draw numbers until one fails, and shrink; what comes of it."""

    @settings(max_examples=50)
    @given(case=st.builds(Ask, st.integers(0, 1000)))
    def every_number_passes(case: Ask) -> None:
        with trial.collecting_failures(case):
            trial.run(number_of, case)

    with pytest.raises((SubjectFailure, FirstFailure)) as failed:
        every_number_passes()
    found = failure_in(failed.value)
    assert isinstance(found, SubjectFailure)
    return found


def test_a_failure_is_shrunk_to_the_smallest_case() -> None:
    """With time left, the case that is reported is the smallest that fails."""
    trial = trial_on(fails_from(17))
    search(trial)
    assert trial.facts.case == Ask(17)


def test_an_example_that_passed_is_run_again_whenever_it_is_asked_for() -> None:
    """When the budget is spent an example that ran before ends as it did; for a new one nothing is done any more."""
    trial, begun = trial_on(Worlds(), seconds=SPENT), []

    def example(number: int) -> None:
        with trial.collecting_failures(Ask(number)):
            begun.append(number)
            trial.holds(trial.run(number_of, Ask(number)) != [0, 2], "two is too much")

    example(1)
    with pytest.raises(SubjectFailure):
        example(2)
    example(1)
    with pytest.raises(UnsatisfiedAssumption):
        example(3)
    assert begun == [1, 2, 1]


def test_without_time_left_nothing_new_is_run_after_a_failure() -> None:
    """Once the budget is spent, only the case that failed is run again, to show that it fails again."""
    worlds = fails_from(17)
    search(trial_on(worlds, seconds=SPENT))
    failing = [case for case in worlds.runs if case.number >= 17]
    assert len(set(failing)) == 1
    assert worlds.runs[-len(failing) :] == failing


def test_where_nothing_smaller_is_wanted_the_first_failure_ends_the_test() -> None:
    """The failing case is run once, and its failure is what the test ends with."""
    worlds = fails_from(17)
    search(trial_on(worlds, seconds=0.0))
    assert len([case for case in worlds.runs if case.number >= 17]) == 1


def test_after_so_many_cases_nothing_new_is_run() -> None:
    """How far a failure is shrunk is a number of cases, so that it is the same on every machine that is fast enough."""
    trial = trial_on(fails_from(17), cases=5)
    search(trial)
    assert trial.shrinking.first_failure is not None
    more = trial.facts.examples - trial.shrinking.first_failure[1]
    assert more == 5 + 1  # the last one is the smallest again, to be reported


def test_a_failure_that_took_a_deadline_is_not_run_again() -> None:
    """A hang costs its deadline once: it is neither shrunk nor run again to be reported."""
    worlds = fails_from(17, Fate.HUNG)
    failure = search(trial_on(worlds))
    assert failure.cause == "hung"
    assert sum(case.number >= 17 for case in worlds.runs) == 1
