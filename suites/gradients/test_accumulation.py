"""Gradient accumulation: several backwards add up to one step, and communicate no more than requested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.gradients import accumulation
from suites.gradients import accumulation_programs as programs
from suites.gradients.accumulation import AccumulationCase, FineCase, accumulation_cases
from suites.gradients.partial_sums import (
    BranchedMicroBatches,
    add_up,
    add_up_in_low_precision,
    branched_micro_batches,
    late_branches,
    on_rank,
)
from suites.kit import expected_collectives as wire
from suites.kit.cases import Stack, TrainingCase
from suites.kit.precision_programs import precision_cases
from suites.kit.strategies import costly, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import trains
from suites.oracle.layout import shard

ADDING = (Feature.FULLY_SHARD, Feature.ACCUMULATION)
#: Two steps, one block sharded by itself, one left to the root, gradients zeroed once and dropped once.
RICH = AccumulationCase(
    2, Stack(3, ("linear", "mlp"), 1), (0,), "float64", True, reshard_after_forward=True, micro=2, kept=(True, False)
)


@requirement("accumulation/quiet", *ADDING, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=accumulation_cases())
def test_gradients_add_up_until_they_are_reduced(trial: Trial, case: AccumulationCase) -> None:
    """With gradient sync off until the last micro-batch nothing is reduced before it, and each group once with it."""
    communicates_and_trains(trial, case, "sync")


@requirement("accumulation/quiet-root", *ADDING, ranks=2)
@costly(2)
@example(case=AccumulationCase(2, Stack(3, ("linear", "mlp"), 1), (0,), "float64", True, quiet="root"))
@given(case=accumulation_cases(quiet="root"))
def test_the_root_alone_can_be_quiet(trial: Trial, case: AccumulationCase) -> None:
    """With sync off for the root and recurse=False all other groups are reduced with every micro-batch."""
    communicates_and_trains(trial, case, "sync")


@requirement("accumulation/quiet-block", *ADDING, ranks=2)
@costly(2)
@given(case=accumulation_cases(quiet="some"))
def test_one_block_can_be_quiet(trial: Trial, case: AccumulationCase) -> None:
    """With sync off for one block all other groups are reduced with every micro-batch."""
    communicates_and_trains(trial, case, "sync")


@requirement("accumulation/loud", Feature.FULLY_SHARD, ranks=2)
@costly(2)
@given(case=accumulation_cases())
def test_gradients_that_are_reduced_every_time_add_up(trial: Trial, case: AccumulationCase) -> None:
    """With sync left on every micro-batch is reduced, and its gradients are added to those that are there."""
    everything = wire.units(case)
    want = expected(case)
    for number, got in enumerate(trial.run(programs.accumulate, case, "none")):
        trial.agree(f"rank {number}", got["trace"], want.trace(number))
        for micro, entries in enumerate(got["traces"]):
            due = wire.tallied(wire.reductions(case, number, everything))
            trial.agree(f"rank {number}, micro-batch {micro}", reduced(entries), due)


@requirement("accumulation/hsdp", *ADDING, Feature.HSDP, ranks=2)
@costly(2)
@given(case=accumulation_cases(replicas=True))
def test_quiet_replicas_neither_scatter_nor_reduce(trial: Trial, case: AccumulationCase) -> None:
    """On replicas of shards, with sync off, neither axis communicates gradients until the last micro-batch."""
    communicates_and_trains(trial, case, "sync")


@requirement("accumulation/hsdp-scatters", *ADDING, Feature.HSDP, ranks=2)
@costly(2)
@example(case=replace(RICH, mesh=(2, 1)))
@example(case=replace(RICH, world_size=4, mesh=(2, 2)))
@given(case=accumulation_cases(replicas=True))
def test_replicas_can_be_reduced_with_the_last_micro_batch_only(trial: Trial, case: AccumulationCase) -> None:
    """With set_requires_all_reduce(False) every micro-batch is reduce-scattered, and the last one alone all-reduced."""
    everything = wire.units(case)
    want = expected(case)
    for number, got in enumerate(trial.run(programs.accumulate, case, "replicas")):
        trial.agree(f"rank {number}", got["trace"], want.trace(number))
        for micro, entries in enumerate(got["traces"]):
            last = micro % case.micro == case.micro - 1
            due = wire.tallied(wire.reductions(case, number, everything, across=last))
            trial.agree(f"rank {number}, micro-batch {micro}", reduced(entries), due)


@requirement("accumulation/hsdp-other-parameters", *ADDING, Feature.HSDP, ranks=2)
@example(case=BranchedMicroBatches((2, 1)))
@example(case=BranchedMicroBatches((2, 2), (3, 5), ("a", "ab", "b")))
@given(case=branched_micro_batches())
def test_partial_sums_are_of_the_parameters_that_were_used(trial: Trial, case: BranchedMicroBatches) -> None:
    """Micro-batches that use different parameters of a group may be all-reduced with the last one alone."""
    for number, got in enumerate(trial.run(add_up, case)):
        trial.agree(f"rank {number}", got, on_rank(case, number))


@requirement("accumulation/gathers-once", *ADDING, ranks=2)
@costly(2)
@given(case=accumulation_cases(reshard_after_forward=False))
def test_what_stays_unsharded_is_gathered_once_a_step(trial: Trial, case: AccumulationCase) -> None:
    """With resharding off after forward and backward, the first micro-batch of a step gathers, and no other does."""
    everything = wire.units(case)
    want = expected(case)
    for number, got in enumerate(trial.run(programs.accumulate, case, "reshard")):
        trial.agree(f"rank {number}", got["trace"], want.trace(number))
        for micro, entries in enumerate(got["traces"]):
            due = wire.gathers(case, number, everything) if micro % case.micro == 0 else []
            gathered = [entry for entry in entries if entry["op"] == "all_gather"]
            trial.agree(f"rank {number}, micro-batch {micro}", wire.counted(gathered), wire.tallied(due))


@requirement("accumulation/pipeline", *ADDING, ranks=2)
@costly(2)
@given(case=st.booleans().flatmap(lambda by_hand: accumulation_cases(dtype="float64", by_hand=by_hand)))
def test_forwards_and_backwards_may_alternate(trial: Trial, case: AccumulationCase) -> None:
    """One forward ahead of one backward, with sync and resharding off until the last, is the unsharded model's step."""
    trains(trial, programs.pipeline, case)


@requirement("accumulation/last-backward", *ADDING, ranks=2)
@costly(2)
@given(case=training_cases(exact=True, dtype="float64", steps=1))
def test_a_backward_may_be_followed_by_another(trial: Trial, case: TrainingCase) -> None:
    """After set_is_last_backward(False) a backward of one result, and then one of another, give all gradients."""
    want = accumulation.fork_gradients(case)
    for number, steps in enumerate(trial.run(programs.two_backwards, case)):
        rows = {name: shard(gradient, case.shards, number) for name, gradient in want.items()}
        trial.agree(f"rank {number}", steps, [rows, rows])


@requirement("accumulation/reduce-dtype", *ADDING, Feature.MIXED_PRECISION, ranks=2)
@costly(2)
@example(
    case=FineCase(
        2,
        Stack(1, ("linear",), multiplier=1, bias=False),
        exact=True,
        seed=1,
        steps=1,
        batch=1,
        param_dtype="bfloat16",
        reduce_dtype="float32",
    )
)
@given(case=precision_cases(FineCase, bias=False, steps=1, pairs=[("bfloat16", "float32")]))
def test_gradients_add_up_in_the_reduce_dtype(trial: Trial, case: FineCase) -> None:
    """Gradients computed in low precision are added up over micro-batches in reduce_dtype, without rounding."""
    want = expected(case)
    for number, got in enumerate(trial.run(programs.accumulate_in_low_precision, case)):
        trial.agree(f"rank {number}", got, want.trace(number)[0]["gradients"])


@requirement("accumulation/late-parameters", *ADDING, Feature.MIXED_PRECISION, ranks=2)
@example(case=BranchedMicroBatches((1, 2)))
@given(case=late_branches())
def test_parameters_may_be_used_first_in_the_last_micro_batch(trial: Trial, case: BranchedMicroBatches) -> None:
    """Where gradients that wait are in reduce_dtype, micro-batches may use different parameters of a group."""
    for number, got in enumerate(trial.run(add_up_in_low_precision, case)):
        want = {name: None if g is None else g.float() for name, g in on_rank(case, number).items()}
        trial.agree(f"rank {number}", got, want)


@requirement("accumulation/offload", *ADDING, Feature.CPU_OFFLOAD, ranks=2)
@costly(2)
@given(case=accumulation_cases(dtype="float64"))
def test_gradients_that_rest_on_the_cpu_add_up(trial: Trial, case: AccumulationCase) -> None:
    """With offload to memory that is not pinned, micro-batches add up, and their gradients lie on the CPU."""
    want = expected(case)
    for number, got in enumerate(trial.run(programs.accumulate_offloaded, case)):
        trial.agree(f"rank {number}", got["trace"], want.trace(number))
        trial.holds(got["devices"] == ["cpu"], f"rank {number}: expected gradients on the CPU, got {got['devices']}")


@requirement("accumulation/reach", *ADDING, ranks=2)
def test_setters_reach_the_modules_below_unless_told_not_to(trial: Trial) -> None:
    """set_requires_gradient_sync reaches all sharded modules below, and with recurse=False the module alone."""
    for number, got in enumerate(trial.run(programs.switched, RICH)):
        trial.agree(f"rank {number}, gradients in the block", got, [False, False, True])


def communicates_and_trains(trial: Trial, case: AccumulationCase, how: str) -> None:
    """Compare training, what each micro-batch reduces, and who has gradients before the last one of the first step."""
    everything, loud = wire.units(case), case.loud()
    spoken = {name for unit in loud for name in unit.parameters}
    early: dict[str, Any] = {name: name in spoken for name, _ in case.build().named_parameters()}
    want = expected(case)
    for number, got in enumerate(trial.run(programs.accumulate, case, how)):
        trial.agree(f"rank {number}", got["trace"], want.trace(number))
        for micro, entries in enumerate(got["traces"]):
            last = micro % case.micro == case.micro - 1
            due = wire.tallied(wire.reductions(case, number, everything if last else loud))
            trial.agree(f"rank {number}, micro-batch {micro}", reduced(entries), due)
        trial.agree(f"rank {number}, who has a gradient", got["early"][0], early)


def reduced(entries: list[dict[str, Any]]) -> wire.Counts:
    """What was said but for gathers."""
    return wire.counted([entry for entry in entries if entry["op"] != "all_gather"])
