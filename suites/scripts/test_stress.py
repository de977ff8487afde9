"""Stress: what is in the way of training changes none of its numbers, and a failure is reported and over."""

from __future__ import annotations

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack
from suites.kit.strategies import costly, given
from suites.oracle.expected import expected
from suites.oracle.judging import compare, trains
from suites.scripts import stress
from suites.scripts.stress import StressedCase, stressed_cases

RICH = StressedCase(2, Stack(5, ("mlp", "linear"), 1), (0, 1), "float64", True, reshard_after_forward=True, late=1)


@requirement("stress/late-rank", Feature.FULLY_SHARD, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=stressed_cases)
def test_a_late_rank_changes_no_number(trial: Trial, case: StressedCase) -> None:
    """Training is exact if one rank comes late to every layer, and in whatever order ranks come."""
    trains(trial, stress.train_amid, case, "one rank takes its time")


@requirement("stress/garbage", Feature.FULLY_SHARD, ranks=2)
@costly(4)
@example(case=RICH)
@given(case=stressed_cases)
def test_collecting_garbage_changes_no_number(trial: Trial, case: StressedCase) -> None:
    """Training is exact if all garbage is collected before every layer: what is needed is held on to."""
    trains(trial, stress.train_amid, case, "all garbage is collected")


@requirement("stress/memory-of-nan", Feature.FULLY_SHARD, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=stressed_cases)
def test_memory_that_nobody_wrote_changes_no_number(trial: Trial, case: StressedCase) -> None:
    """Training is exact if memory holds NaN until it is written: no result comes of what was there before."""
    trains(trial, stress.train_on_nothing, case)


@requirement("stress/failed-collective", Feature.FULLY_SHARD, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=stressed_cases)
def test_a_failed_collective_is_told_and_over(trial: Trial, case: StressedCase) -> None:
    """A collective's error comes out of the iteration and leaves shards alone, and a fresh model trains right."""
    oracle = expected(case)
    gots = trial.run(stress.fail_and_go_on, case)
    for number, got in enumerate(gots):
        wanted = f"collective {case.fails_at} was made to fail"
        there = ["nothing", wanted] if case.fails_at > 1 else [wanted]  # one gather and one reduction there must be
        trial.holds(got["raised"] in there, f"rank {number}: expected {wanted!r} to be raised, got {got['raised']!r}")
        trial.agree(f"rank {number}, shards after it", got["after"], got["before"])
    compare(trial, case, [got["trace"] for got in gots], [oracle.trace(number) for number in range(len(gots))])
