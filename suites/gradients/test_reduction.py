"""Reduction of gradients: by what sums are divided, by which reductions, and what hooks may do to them."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import averages, claims
from suites.communication.played import play
from suites.gradients import reductions
from suites.gradients.reductions import (
    LargeCase,
    by_own_size,
    dividing,
    factor_cases,
    large_cases,
    put_off,
    replicated_factor_cases,
)
from suites.kit import expected_collectives as wire
from suites.kit.cases import Stack, TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.strategies import costly, examples, given, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import agrees, compare, follows
from suites.oracle.situation import PASS, SUMS

SHARDED = Feature.FULLY_SHARD
FACTOR = (SHARDED, Feature.DIVIDE_FACTOR)
FORCED = (SHARDED, Feature.FORCE_SUM)
HOOK = (SHARDED, Feature.ALL_REDUCE_HOOK)
NET = Stack(3, ("linear", "mlp"), 1)
#: Two ranks that each hold everything.
WHOLE = TrainingCase(2, NET, (0,), "float32", True, mesh=(2, 1), acts=dividing({"root": 2.0, "0": 4.0}))
#: Two replicas of two shards.
SQUARE = TrainingCase(4, Stack(1, ("mlp",), 1, bias=False), exact=True, mesh=(2, 2), batch=1)
#: Two gradients of 2**15, of which float16 cannot hold the sum; with the third it is 2**14.
PUT_OFF = LargeCase(
    2, mesh=(2, 1), reduce_dtype="float32", weights=(1.0, 1.0, -1.5),
    acts=("defer all_reduce", *PASS * 2, "resume all_reduce", *PASS),
)  # fmt: skip
ROOT_ALONE = TrainingCase(2, NET, (0,), "float32", True, acts=dividing({"root": 1.0}))


@requirement("reduction/divide-factor", *FACTOR, Feature.FORCE_SUM, ranks=2)
@example(case=ROOT_ALONE)
@example(case=replace(ROOT_ALONE, acts=dividing({"root": 2.0})))
@given(case=factor_cases())
def test_a_factor_divides_the_sum_of_one_group(trial: Trial, case: TrainingCase) -> None:
    """set_gradient_divide_factor(f) gives that group alone the sum of gradients divided by f; forced sums stay SUMs."""
    sums_only(trial, case)


@requirement("reduction/divide-factor-hsdp", *FACTOR, Feature.FORCE_SUM, Feature.HSDP, ranks=2)
@example(case=replace(SQUARE, acts=dividing({"root": 0.5})))
@given(case=replicated_factor_cases(2))
def test_a_factor_divides_the_sum_over_all_replicas(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards the sum that a factor divides is that over all ranks."""
    follows(trial, play, expected(case))


@requirement("reduction/divide-factor-partial", *FACTOR, Feature.FORCE_SUM, Feature.HSDP, ranks=2)
@example(case=put_off(replace(SQUARE, acts=dividing({"root": 2.0}))))
@given(case=replicated_factor_cases(2).map(put_off))
def test_a_factor_divides_partial_sums_once(trial: Trial, case: TrainingCase) -> None:
    """A factor divides once each what waits to be all-reduced, and what comes with the last micro-batch."""
    follows(trial, play, expected(case))


@requirement("reduction/divide-factor-low", *FACTOR, Feature.FORCE_SUM, Feature.MIXED_PRECISION, ranks=2)
@given(case=factor_cases(low=True))
def test_a_factor_divides_what_was_computed_in_low_precision(trial: Trial, case: TrainingCase) -> None:
    """A factor divides sums in reduce_dtype of gradients that were computed in bfloat16."""
    follows(trial, play, expected(case))


@requirement("reduction/divide-factor-alone", *FACTOR, ranks=2, limits=("premul_sum",))
@example(case=TrainingCase(2, Stack(1, ("linear",), 1), exact=True, acts=dividing({"root": 4.0}, sums=False)))
@given(case=factor_cases(sums=False))
def test_a_factor_needs_no_forced_sums(trial: Trial, case: TrainingCase) -> None:
    """Where the backend can multiply before it sums, a factor divides as well without forced sums."""
    follows(trial, play, expected(case))


@requirement("reduction/own-size", *FACTOR, Feature.HSDP, ranks=2)
@example(case=replace(SQUARE, acts=dividing({"root": 2.0}, sums=False)))
@given(case=replicated_factor_cases(2, sums=False, dtype="float32").map(by_own_size))
def test_the_number_of_shards_is_a_factor_on_every_backend(trial: Trial, case: TrainingCase) -> None:
    """A factor that equals the number of ranks in a replica divides, without forced sums, the sum over all ranks."""
    follows(trial, play, expected(case))


@requirement("reduction/divides-once", *FACTOR, Feature.FORCE_SUM, Feature.HSDP)
@example(case=WHOLE)
@given(case=replicated_factor_cases(1))
def test_a_factor_divides_once_where_nothing_is_scattered(trial: Trial, case: TrainingCase) -> None:
    """Where each rank holds everything, with sums forced, a factor divides the sum over ranks once."""
    follows(trial, play, expected(case))


@requirement("reduction/old-name", *FACTOR, Feature.FORCE_SUM, Feature.HSDP, level="may", ranks=2)
@costly(4)
@example(case=replace(SQUARE, acts=dividing({"root": 2.0})))
@given(case=factor_cases() | replicated_factor_cases(2))
def test_the_old_name_of_the_factor_warns_and_works(trial: Trial, case: TrainingCase) -> None:
    """set_reduce_scatter_divide_factor warns that it is deprecated and does what set_gradient_divide_factor does."""
    found = trial.run(reductions.play_by_old_name, case)
    agrees(trial, [got["trace"] for got in found], expected(case))
    for number, got in enumerate(found):
        trial.holds(got["warned"], f"rank {number}: expected a warning of deprecation, there was none")


@requirement("reduction/sums", *FORCED, ranks=2)
@example(case=TrainingCase(2, Stack(1, ("linear",), bias=False), exact=True, batch=1, acts=(SUMS, *PASS)))
@given(case=training_cases(exact=True, acts=(SUMS, *PASS)))
def test_forced_sums_give_the_mean(trial: Trial, case: TrainingCase) -> None:
    """After set_force_sum_reduction_for_comms every reduction is a SUM, and gradients are the mean all the same."""
    sums_only(trial, case)


@requirement("reduction/sums-hsdp", *FORCED, Feature.HSDP, ranks=2)
@given(case=hsdp_cases(exact=True, acts=(SUMS, *PASS)))
def test_forced_sums_give_the_mean_over_replicas(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards forced sums are SUMs over both axes, and gradients are the mean over all ranks."""
    sums_only(trial, case)


@requirement("reduction/one-rank", SHARDED, Feature.HSDP)
@given(case=training_cases(exact=True, steps=1, world_size=1, mesh=st.sampled_from([(), (1, 1)])))
def test_one_rank_keeps_its_gradients(trial: Trial, case: TrainingCase) -> None:
    """On one rank gradients are those of the unsharded model, whatever the mesh."""
    follows(trial, play, expected(case))


@requirement("reduction/half-range", SHARDED, level="should", ranks=2)
@given(case=large_cases())
def test_the_mean_of_half_precision_does_not_overflow(trial: Trial, case: LargeCase) -> None:
    """Gradients in float16 whose sum over ranks float16 cannot hold have the mean that it can."""
    have_the_mean(trial, case)


@requirement("reduction/half-range-sums", *FORCED, Feature.MIXED_PRECISION, ranks=2)
@given(case=large_cases(reduce_dtype="float32", acts=(SUMS, *PASS)))
def test_the_mean_of_sums_in_a_wider_dtype_does_not_overflow(trial: Trial, case: LargeCase) -> None:
    """With forced sums, gradients in float16 that are reduced in float32 are divided before they are float16 again."""
    have_the_mean(trial, case)


@requirement("reduction/half-range-forced", *FORCED, level="should", ranks=2)
@given(case=large_cases(acts=(SUMS, *PASS)))
def test_the_mean_of_forced_sums_in_half_precision_does_not_overflow(trial: Trial, case: LargeCase) -> None:
    """With forced sums, too, gradients in float16 whose sum float16 cannot hold have the mean that it can."""
    have_the_mean(trial, case)


@requirement("reduction/hook", *HOOK, ranks=2)
@given(case=training_cases(exact=True, acts=PASS))
def test_a_hook_is_given_each_reduced_part(trial: Trial, case: TrainingCase) -> None:
    """An all-reduce hook is called once with each group's reduced numbers, flat, and may change them in place."""
    hooks_change_gradients(trial, case)


@requirement("reduction/hook-precision", *HOOK, Feature.MIXED_PRECISION, ranks=2)
@example(case=PrecisionCase(2, Stack(3, ("linear",), 1), exact=True, batch=1, reduce_dtype="bfloat16", acts=PASS))
@given(case=precision_cases(pairs=[(None, "bfloat16"), ("bfloat16", "float16"), (None, "float16")], acts=PASS))
def test_a_hook_changes_what_is_reduced_in_another_dtype(trial: Trial, case: PrecisionCase) -> None:
    """An all-reduce hook may change in place what was reduced in a dtype that is not that of the parameters."""
    hooks_change_gradients(trial, case)


@requirement("reduction/hook-stream", *HOOK, ranks=2)
@given(case=training_cases(exact=True, acts=PASS))
def test_a_hook_may_have_a_stream_of_its_own(trial: Trial, case: TrainingCase) -> None:
    """An all-reduce hook that is given with a stream, on CPUs too, is called and changes gradients as any other."""
    hooks_change_gradients(trial, case, True)


@requirement("reduction/hook-hsdp", *HOOK, Feature.HSDP, ranks=2)
@given(case=hsdp_cases(exact=True, acts=PASS))
def test_a_hook_comes_after_the_replicas_are_reduced(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards an all-reduce hook is given what has been all-reduced."""
    hooks_change_gradients(trial, case)


@requirement("reduction/replicas-by-hook", *HOOK, ranks=4)
@given(case=hsdp_cases(exact=True, steps=1, mesh=(2, 2)))
def test_a_hook_can_average_replicas(trial: Trial, case: TrainingCase) -> None:
    """Shards over one axis of a mesh, with a hook that averages over the other, have the mean over all ranks."""
    follows(trial, reductions.play_with_replicas_by_hook, expected(case))


@requirement("reduction/refuses-streams", *HOOK, Feature.HSDP, ranks=2, level="should")
def test_a_stream_for_a_hook_is_refused_on_replicas(trial: Trial) -> None:
    """On replicas of shards a stream given with an all-reduce hook raises an error that names the stream."""
    case = TrainingCase(2, NET, mesh=(2, 1))
    trial.refuses(reductions.hook_in_a_stream, case, "stream")


@requirement("reduction/half-range-hsdp", SHARDED, Feature.HSDP, level="should", ranks=2)
@examples([LargeCase(2, mesh=(2, 1)), LargeCase(4, mesh=(2, 2))])
@given(case=large_cases().map(lambda case: replace(case, mesh=(2, case.world_size // 2))))
def test_the_mean_over_replicas_of_half_precision_does_not_overflow(trial: Trial, case: LargeCase) -> None:
    """On replicas of whole parameters or of shards, the mean in float16 is as right as without replicas."""
    have_the_mean(trial, case)


@requirement(
    "reduction/half-range-partial", SHARDED, Feature.HSDP, Feature.ACCUMULATION, Feature.MIXED_PRECISION,
    level="should", ranks=2,
)  # fmt: skip
def test_sums_that_wait_for_replicas_are_in_the_reduce_dtype(trial: Trial) -> None:
    """Gradients in float16, reduced in float32, wait for replicas in float32, which holds what float16 cannot."""
    gots = [trace[-1]["gradients"] for trace in trial.run(play, PUT_OFF)]
    due = torch.tensor([[2.0**14 * (1 if averages() else PUT_OFF.world_size)]], dtype=torch.float16)
    compare(trial, PUT_OFF, gots, [{"0.weight": due}] * len(gots))


def have_the_mean(trial: Trial, case: LargeCase) -> None:
    """Compare gradients alone: parameters may step far."""
    want = expected(case)
    gots = [trace[-1]["gradients"] for trace in trial.run(play, case)]
    compare(trial, case, gots, [want.on_rank(-1, number)["gradients"] for number in range(len(gots))])


def sums_only(trial: Trial, case: TrainingCase) -> None:
    """Compare gradients with the mean; reductions in the trace must be SUM, and ranks may add explicitly."""
    traces = trial.run(play, case)
    agrees(trial, traces, expected(case))
    for number, trace in enumerate(traces):
        later = trace[case.actions.index("forward") + 1 :]  # what the first one says is not the requirement's business
        entries = [entry for seen in later for entry in seen["collectives"] if not wire.tells_nothing(entry)]
        others = {entry["reduce"] for entry in entries} - {None, "SUM"}
        trial.agree(f"rank {number}, reductions but sums", sorted(others), [])


def hooks_change_gradients(trial: Trial, case: TrainingCase, in_stream: bool = False) -> None:
    """Compare gradients with twice the absolute mean, and what hooks were given with the parts of the groups."""
    want = expected(case)
    dtype = str(case.policy.get("reduce_dtype", case.torch_dtype)).removeprefix("torch.")
    seen = sorted(f"{dtype}[{group.trained}]" for group in wire.group_sizes(case))
    for number, got in enumerate(trial.run(reductions.play_with_hooks, case, in_stream)):
        means = want.on_rank(-1, number)["gradients"]
        trial.agree(f"rank {number}", got["gradients"], {name: 2 * mean.abs() for name, mean in means.items()})
        if claims() >= {Feature.ONE_MESSAGE, Feature.ROW_LAYOUT}:
            trial.agree(f"rank {number}, what the hooks were given", got["seen"], seen)
