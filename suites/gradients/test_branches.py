"""Gradient accumulation where micro-batches, or ranks, use different parameters of a group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.communication.played import play
from suites.gradients.accumulation import REPLICAS
from suites.gradients.branches import LOW, BranchedMicroBatches, PassedMicroBatches, branched_micro_batches
from suites.kit.cases import Stack
from suites.kit.strategies import each, given
from suites.oracle.expected import expected
from suites.oracle.judging import follows

ADDING = (Feature.FULLY_SHARD, Feature.ACCUMULATION)
SOME = BranchedMicroBatches(2, Stack(3, ("linear", "mlp"), 1, bias=False), exact=True, batch=1)
#: With the first block either two weights of an MLP, 6 x 3 and 3 x 6, or two of 3 x 3.
OF_OTHER_SIZES = Stack(3, ("linear", "mlp", "linear", "linear"), 2, bias=False)
#: One rank does not use the first block, or, where it is a group of its own, what it gives.
OTHER = ("1", "01")
BY_RANK = replace(SOME, runs=OTHER, zeros_for_unused=True, by_rank=True)
FEW = [(None, None), ("bfloat16", None), ("bfloat16", "float32")]
#: Blocks of micro-batches, of which the last uses fewer.
EARLY = st.sampled_from([("01", "0"), ("1", "01", "0"), ("01", "0", "1")])
#: The last micro-batch passes the second block, in a row of two, each a group.
AT_LAST: dict[str, Any] = {"runs": ("01", "0"), "sharded": (0, 1)}
PASSED = PassedMicroBatches(2, Stack(3, ("linear",) * 2, 1), dtype="float64", exact=True, batch=1, **AT_LAST)
#: No micro-batch uses the second block.
UNUSED: dict[str, Any] = {"runs": ("0", "0"), "zeros_for_unused": True}


@requirement("accumulation/hsdp-other-parameters", *ADDING, Feature.HSDP, ranks=2)
@example(case=replace(SOME, dtype="float64", mesh=(2, 1)))
@example(case=replace(SOME, dtype="float64", mesh=(2, 2), world_size=4, runs=("0", "01", "1")))
@example(case=replace(SOME, dtype="float64", mesh=(2, 1), runs=OTHER))
@given(case=branched_micro_batches(**REPLICAS))
def test_partial_sums_are_of_the_parameters_that_were_used(trial: Trial, case: BranchedMicroBatches) -> None:
    """Micro-batches that use different parameters of a group may be all-reduced with the last one alone."""
    follows(trial, play, expected(case))


@requirement("accumulation/late-parameters", *ADDING, Feature.MIXED_PRECISION, ranks=2)
@example(case=replace(SOME, param_dtype="bfloat16", reduce_dtype="float32"))
@given(case=branched_micro_batches(**LOW))
def test_parameters_may_be_used_first_in_the_last_micro_batch(trial: Trial, case: BranchedMicroBatches) -> None:
    """Where gradients that wait are in reduce_dtype, micro-batches may use different parameters of a group."""
    follows(trial, play, expected(case))


@requirement("accumulation/early-parameters", *ADDING, Feature.MIXED_PRECISION, ranks=2)
@example(case=replace(SOME, param_dtype="bfloat16", reduce_dtype="float32", runs=("01", "0")))
@given(case=branched_micro_batches(runs=EARLY, **LOW))
def test_parameters_may_be_used_before_the_last_micro_batch_alone(trial: Trial, case: BranchedMicroBatches) -> None:
    """Gradients that wait in reduce_dtype are reduced, too, of parameters that the last micro-batch does not use."""
    follows(trial, play, expected(case))


@requirement("accumulation/unused-later", *ADDING, Feature.MIXED_PRECISION, ranks=2)
@example(case=replace(SOME, param_dtype="bfloat16", reduce_dtype="float32", runs=("01", "01"), later="0"))
@given(case=branched_micro_batches(runs=st.just(("01", "01")), later=st.sampled_from("01"), **LOW))
def test_what_a_later_step_does_not_use_has_no_gradient(trial: Trial, case: BranchedMicroBatches) -> None:
    """After a step whose gradients waited in reduce_dtype, what the next one does not use has no gradient."""
    follows(trial, play, expected(case))


@requirement("accumulation/passed-at-last", *ADDING, ranks=2)
@example(case=PASSED)
@given(case=branched_micro_batches(cls=PassedMicroBatches, **AT_LAST))
def test_the_last_micro_batch_may_pass_a_module(trial: Trial, case: PassedMicroBatches) -> None:
    """What waits to be reduced is reduced with the last micro-batch, also of a module that only hands on its input."""
    follows(trial, play, expected(case))


@requirement("accumulation/hsdp-passed-at-last", *ADDING, Feature.HSDP, ranks=2)
@example(case=replace(PASSED, mesh=(2, 1)))
@given(case=branched_micro_batches(cls=PassedMicroBatches, **AT_LAST, **REPLICAS))
def test_the_last_micro_batch_may_pass_a_module_on_replicas(trial: Trial, case: PassedMicroBatches) -> None:
    """On replicas what waits to be all-reduced is so with the last micro-batch, also of a module that it passes."""
    follows(trial, play, expected(case))


@requirement("accumulation/zeros", *ADDING, Feature.UNUSED_PARAMETERS, ranks=2)
@example(case=replace(SOME, dtype="float64", **UNUSED))
@given(case=branched_micro_batches(zeros=True))
def test_what_no_micro_batch_uses_may_count_as_zero(trial: Trial, case: BranchedMicroBatches) -> None:
    """With set_reduce_scatter_unused_params micro-batches may use some parameters alone; others have zeros at last."""
    follows(trial, play, expected(case))


@requirement("accumulation/hsdp-zeros", *ADDING, Feature.UNUSED_PARAMETERS, Feature.HSDP, ranks=2)
@example(case=replace(SOME, dtype="float64", mesh=(2, 1), **UNUSED))
@given(case=branched_micro_batches(zeros=True, **REPLICAS))
def test_zeros_are_all_reduced_with_partial_sums(trial: Trial, case: BranchedMicroBatches) -> None:
    """On replicas, too, what no micro-batch uses may have zeros, which are all-reduced with the last one."""
    follows(trial, play, expected(case))


@requirement("accumulation/low-zeros", *ADDING, Feature.UNUSED_PARAMETERS, Feature.MIXED_PRECISION, ranks=2)
@example(case=replace(SOME, param_dtype="bfloat16", reduce_dtype="float32", **UNUSED))
@given(case=branched_micro_batches(zeros=True, **LOW))
def test_zeros_go_with_gradients_that_wait_in_reduce_dtype(trial: Trial, case: BranchedMicroBatches) -> None:
    """What no micro-batch uses may have zeros, also where gradients wait in another dtype than they come in."""
    follows(trial, play, expected(case))


@requirement("accumulation/by-turns", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(SOME, dtype="float64", runs=OTHER, reduced=True))
@example(case=replace(SOME, dtype="float64", net=OF_OTHER_SIZES, runs=("01", "023"), reduced=True))
@given(case=branched_micro_batches(reduced=True))
def test_micro_batches_that_are_reduced_may_use_different_parameters(trial: Trial, case: BranchedMicroBatches) -> None:
    """Micro-batches that are each reduced add up, also where each uses other parameters of a group."""
    follows(trial, play, expected(case))


@requirement("accumulation/by-turns-hsdp", Feature.FULLY_SHARD, Feature.HSDP, ranks=2)
@example(case=replace(SOME, dtype="float64", mesh=(2, 1), runs=OTHER, reduced=True))
@given(case=branched_micro_batches(reduced=True, **REPLICAS))
def test_replicas_may_use_different_parameters_by_turns(trial: Trial, case: BranchedMicroBatches) -> None:
    """On replicas of shards, micro-batches that are each reduced add up, whatever parameters of a group each uses."""
    follows(trial, play, expected(case))


@requirement(
    "accumulation/zeros-by-rank", Feature.FULLY_SHARD, Feature.UNUSED_PARAMETERS, Feature.MIXED_PRECISION, ranks=2
)
@each(BY_RANK, param_dtype=(None, "bfloat16"))
@given(case=branched_micro_batches(zeros=True, by_rank=True, dtype="float32", pairs=FEW))
def test_ranks_may_use_different_parameters(trial: Trial, case: BranchedMicroBatches) -> None:
    """With set_reduce_scatter_unused_params each rank may use other parameters of a group: elsewhere they are zero."""
    follows(trial, play, expected(case))


@requirement("accumulation/zeros-of-modules", Feature.FULLY_SHARD, Feature.UNUSED_PARAMETERS, ranks=2)
@example(case=replace(BY_RANK, runs=OTHER, sharded=(0, 1)))
@given(case=branched_micro_batches(zeros=True, by_rank=True, runs=st.just(OTHER), sharded=(0, 1)))
def test_ranks_may_leave_out_what_a_sharded_module_gives(trial: Trial, case: BranchedMicroBatches) -> None:
    """With set_reduce_scatter_unused_params a rank may leave out what a sharded module gives that runs on all ranks."""
    follows(trial, play, expected(case))
