"""Gradient accumulation: several backwards add up to one step, and communicate no more than requested."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.communication.played import play
from suites.communication.talk import Kind, says
from suites.gradients.accumulation import (
    FORK,
    KEPT_TILL_FINALIZED,
    NOT_FINALIZED,
    NOTHING_LEFT,
    PARTIAL,
    REPLICAS,
    TAKEN_BEFORE,
    AccumulationCase,
    EndedTwice,
    OffloadedRecorded,
    Settled,
    accumulation_cases,
    before_last,
    begun_again,
)
from suites.gradients.branches import TWO_BLOCKS
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import costly, each, examples, given, given_half, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import agrees, follows
from suites.oracle.situation import PASS
from suites.passes import pass_programs
from suites.passes.pass_strategies import pass_cases

ADDING = (Feature.FULLY_SHARD, Feature.ACCUMULATION)
#: Two steps of three micro-batches, one block sharded separately, gradients zeroed once and dropped once.
RICH = AccumulationCase(
    2, Stack(3, ("linear", "mlp"), 1), (0,), "float64", True, reshard_after_forward=True, micro=3, kept=(True, False)
)
LINE = Stack(1, ("linear",), 1, bias=False)
BEFORE_LAST = TrainingCase(2, LINE, dtype="float64", steps=1, batch=1)


@requirement("accumulation/quiet", *ADDING, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=accumulation_cases())
def test_gradients_add_up_until_they_are_reduced(trial: Trial, case: AccumulationCase) -> None:
    """With gradient sync off until the last micro-batch nothing is reduced before it, and each group once with it."""
    adds_up(trial, case)


@requirement("accumulation/quiet-root", *ADDING, ranks=2)
@costly(2)
@example(case=AccumulationCase(2, Stack(3, ("linear", "mlp"), 1), (0,), "float64", True, quiet="root"))
@given(case=accumulation_cases("root"))
def test_the_root_alone_can_be_quiet(trial: Trial, case: AccumulationCase) -> None:
    """With sync off for the root and recurse=False all other groups are reduced with every micro-batch."""
    adds_up(trial, case)


@requirement("accumulation/quiet-block", *ADDING, ranks=2)
@costly(2)
@given(case=accumulation_cases("some"))
def test_one_block_can_be_quiet(trial: Trial, case: AccumulationCase) -> None:
    """With sync off for one block all other groups are reduced with every micro-batch."""
    adds_up(trial, case)


@requirement("accumulation/loud", Feature.FULLY_SHARD, ranks=2)
@costly(2)
@given(case=accumulation_cases())
def test_gradients_that_are_reduced_every_time_add_up(trial: Trial, case: AccumulationCase) -> None:
    """With sync left on every micro-batch is reduced, and its gradients are added to those that are there."""
    adds_up(trial, replace(case, quiet="none"))


@requirement("accumulation/hsdp", *ADDING, Feature.HSDP, ranks=2)
@costly(2)
@given(case=accumulation_cases(**REPLICAS))
def test_quiet_replicas_neither_scatter_nor_reduce(trial: Trial, case: AccumulationCase) -> None:
    """On replicas of shards, with sync off, neither axis communicates gradients until the last micro-batch."""
    adds_up(trial, case)


@requirement("accumulation/hsdp-scatters", *ADDING, Feature.HSDP, ranks=2)
@costly(2)
@example(case=replace(RICH, mesh=(2, 1)))
@example(case=replace(RICH, world_size=4, mesh=(2, 2)))
@example(case=replace(RICH, world_size=4, mesh=(2, 2), net=Stack(3, ("linear",) * 3, 1), sharded=(0, 1, 2)))
@given(case=accumulation_cases(**REPLICAS))
def test_replicas_can_be_reduced_with_the_last_micro_batch_only(trial: Trial, case: AccumulationCase) -> None:
    """With set_requires_all_reduce(False) every micro-batch is reduce-scattered, and the last one alone all-reduced."""
    adds_up(trial, replace(case, quiet="replicas"))


@requirement("accumulation/hsdp-resumed", *ADDING, Feature.HSDP, ranks=2)
@examples(replace(RICH, mesh=mesh, world_size=math.prod(mesh), quiet="scattered") for mesh in ((2, 1), (2, 2)))
@given(case=accumulation_cases("scattered", **REPLICAS))
def test_gradient_sync_turns_on_what_was_turned_off_alone(trial: Trial, case: AccumulationCase) -> None:
    """After set_requires_all_reduce(False), set_requires_gradient_sync(True) has replicas reduce all that waits."""
    adds_up(trial, case)


@requirement("accumulation/gathers-once", *ADDING, ranks=2)
@costly(2)
@given(case=accumulation_cases(reshard_after_forward=False))
def test_what_stays_unsharded_is_gathered_once_a_step(trial: Trial, case: AccumulationCase) -> None:
    """With resharding off after forward and backward, the first micro-batch of a step gathers, and no other does."""
    adds_up(trial, replace(case, quiet="gathered"), "gathers")


@requirement("accumulation/pipeline", *ADDING, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=accumulation_cases(dtype="float64", by_hand=st.booleans()))
def test_forwards_and_backwards_may_alternate(trial: Trial, case: AccumulationCase) -> None:
    """One forward ahead of one backward, with sync and resharding off until the last, is the unsharded model's step."""
    follows(trial, play, expected(replace(case, quiet="pipeline")))


@requirement("accumulation/finalized", *ADDING, Feature.MANUAL_FINALIZATION, ranks=2)
@costly(2)
@examples([replace(RICH, quiet="finalized", later=later) for later in (False, True)])
@given(case=accumulation_cases("finalized", later=st.booleans()))
def test_backwards_may_be_ended_by_an_act_of_its_own(trial: Trial, case: AccumulationCase) -> None:
    """With set_manual_backward_finalization, finalize_backward() reduces and frees what earlier backwards have left."""
    adds_up(trial, case, "")


@requirement("accumulation/finalized-twice", *ADDING, Feature.MANUAL_FINALIZATION, ranks=2)
def test_what_cannot_be_ended_twice_goes_on(trial: Trial) -> None:
    """A finalize_backward() while an earlier one is under way may be refused, and the earlier one ends all the same."""
    follows(trial, EndedTwice.play, expected(replace(RICH, quiet="finalized", later=True)))


@requirement("accumulation/finalized-frees", *ADDING, Feature.MANUAL_FINALIZATION, ranks=2)
def test_finalizing_frees_what_a_backward_was_to_keep(trial: Trial) -> None:
    """finalize_backward() frees what a backward has kept, if that is wanted by then: the next pass sees the step."""
    case = TrainingCase(2, RICH.net, RICH.sharded, "float64", True, acts=KEPT_TILL_FINALIZED)
    follows(trial, play, expected(case))


@requirement("accumulation/refuses-finalizing", *ADDING, Feature.MANUAL_FINALIZATION, ranks=2, level="should")
@pytest.mark.parametrize("wrong", NOT_FINALIZED)
def test_what_cannot_be_finalized_is_refused(trial: Trial, wrong: str) -> None:
    """finalize_backward() twice or unasked raises, and so does asking for it below the root, or after a backward."""
    acts, names = NOT_FINALIZED[wrong]
    trial.refuses(play, replace(BEFORE_LAST, net=RICH.net, sharded=RICH.sharded, acts=acts), *names)


@requirement("accumulation/refuses-lost-gradients", *ADDING, Feature.MANUAL_FINALIZATION, Feature.RESET, ranks=2)
def test_gradients_that_a_reset_has_dropped_are_not_waited_for(trial: Trial) -> None:
    """After reset_iter_state() the handle of an earlier finalize_backward() raises an error that says so."""
    trial.refuses(play, replace(BEFORE_LAST, acts=NOTHING_LEFT), "invalid", "invalidated", "dropped")


@requirement("accumulation/refuses-partial-sums", *ADDING, Feature.MANUAL_FINALIZATION, Feature.HSDP, ranks=2)
def test_partial_sums_are_not_finalized(trial: Trial) -> None:
    """finalize_backward() raises an error that says so where gradients are yet to be reduced across replicas."""
    names = ("set_requires_all_reduce", "all-reduce", "all_reduce", "partial")
    trial.refuses(play, replace(BEFORE_LAST, mesh=(2, 1), acts=PARTIAL), *names)


@requirement("accumulation/last-backward", *ADDING, ranks=2)
@costly(2)
@given(case=pass_cases(plan=(0, 1)))
def test_a_backward_may_be_followed_by_another(trial: Trial, case: TrainingCase) -> None:
    """After set_is_last_backward(False) a backward of one result, and then one of another, give all gradients."""
    pass_programs.follows(trial, case, FORK)


@requirement("accumulation/before-last", *ADDING, Feature.LAST_BACKWARD, level="should", ranks=2)
@example(case=replace(BEFORE_LAST, acts=before_last("drop")))
@given_half(case=training_cases(acts=st.sampled_from(("step", "drop")).map(before_last)))
def test_a_backward_that_is_not_the_last_leaves_gradients(trial: Trial, case: TrainingCase) -> None:
    """After set_is_last_backward(False) gradients are there once the device is done, to take a step with or to drop."""
    follows(trial, Settled.play, expected(case))


@requirement("accumulation/offload", *ADDING, Feature.CPU_OFFLOAD, ranks=2)
@costly(2)
@example(case=replace(RICH, quiet="none"))
@given(case=accumulation_cases(dtype="float64"))
def test_gradients_that_rest_on_the_cpu_add_up(trial: Trial, case: AccumulationCase) -> None:
    """With offload to memory that is not pinned, micro-batches add up, reduced each or at last, on the CPU."""
    traces = trial.run(OffloadedRecorded.play, case)
    agrees(trial, traces, expected(case))
    last = len(case.actions) - 1 - case.actions[::-1].index("step")
    trial.agree("the devices of gradients", [trace[last]["devices"] for trace in traces], [["cpu"]] * case.world_size)


#: Gradients of a first pass, which a user keeps, as one does who combines those of several tasks.
STASHED = (*PASS, "stash", *PASS, "drop", *PASS)


@requirement("accumulation/stashed", Feature.FULLY_SHARD, ranks=2)
@example(case=TrainingCase(2, RICH.net, RICH.sharded, "float64", True, acts=STASHED))
@given(case=training_cases(exact=True, acts=STASHED))
def test_gradients_that_a_user_keeps_stay_what_they_are(trial: Trial, case: TrainingCase) -> None:
    """Where gradients are set to None and the user keeps the tensors, later passes do not change these."""
    follows(trial, play, expected(case))


#: A block trains in the first micro-batch alone; the second pass is reduced.
FROZEN_MEANWHILE = ("defer gradient_sync", *PASS, "freeze 0", "resume gradient_sync", *PASS)


@requirement("accumulation/frozen-meanwhile", *ADDING, ranks=2)
@example(case=TrainingCase(2, RICH.net, RICH.sharded, "float64", True, acts=FROZEN_MEANWHILE))
@given(case=training_cases(exact=True, net=TWO_BLOCKS, acts=FROZEN_MEANWHILE))
def test_what_is_frozen_between_micro_batches_keeps_its_gradient(trial: Trial, case: TrainingCase) -> None:
    """Gradients of earlier micro-batches are reduced with the last one, also of what is frozen before that."""
    follows(trial, play, expected(case))


@requirement("accumulation/reset", *ADDING, Feature.RESET, ranks=2)
@example(case=TrainingCase(2, RICH.net, RICH.sharded, "float64", True, acts=begun_again("gradient_sync")))
@given(case=training_cases(exact=True, acts=begun_again("gradient_sync")))
def test_a_reset_drops_what_waits_to_be_reduced(trial: Trial, case: TrainingCase) -> None:
    """After an exception in a micro-batch, and reset_iter_state(), nothing that waited to be reduced is added up."""
    follows(trial, play, expected(case))


@requirement("accumulation/hsdp-reset", *ADDING, Feature.RESET, Feature.HSDP, ranks=2)
@example(case=TrainingCase(2, RICH.net, RICH.sharded, "float64", True, mesh=(2, 1), acts=begun_again("all_reduce")))
@given(case=training_cases(exact=True, dtype="float64", acts=begun_again("all_reduce"), **REPLICAS))
def test_a_reset_drops_partial_sums(trial: Trial, case: TrainingCase) -> None:
    """After an exception and reset_iter_state(), nothing is added up that was reduced and waited for replicas."""
    follows(trial, play, expected(case))


@requirement("accumulation/reset-keeps", *ADDING, Feature.LAST_BACKWARD, Feature.FORCE_SUM, Feature.RESET, ranks=2)
@each(BEFORE_LAST, acts=TAKEN_BEFORE)
@given_half(case=training_cases(exact=True, dtype="float64", acts=st.sampled_from(TAKEN_BEFORE)))
def test_a_reset_leaves_gradients_that_were_taken_away(trial: Trial, case: TrainingCase) -> None:
    """Gradients that the user took away before an exception and reset_iter_state() are what they were."""
    follows(trial, Settled.play, expected(case))


@requirement("accumulation/reach", *ADDING, ranks=2)
def test_setters_reach_the_modules_below_unless_told_not_to(trial: Trial) -> None:
    """set_requires_gradient_sync reaches all sharded modules below, and with recurse=False the module alone."""
    adds_up(trial, TrainingCase(2, RICH.net, RICH.sharded, "float64", True, acts=reaching("gradient_sync")))


@requirement("accumulation/hsdp-reach", *ADDING, Feature.HSDP, ranks=2)
def test_all_reduces_wait_in_the_modules_below_unless_told_not_to(trial: Trial) -> None:
    """set_requires_all_reduce reaches all sharded modules below, and with recurse=False the module alone."""
    acts = reaching("all_reduce")
    case = TrainingCase(2, RICH.net, RICH.sharded, "float64", True, mesh=(2, 1), acts=acts)
    follows(trial, play, expected(case))


@requirement("accumulation/no-replicas", *ADDING, ranks=2)
@given(case=training_cases(exact=True, dtype="float64", acts=("defer all_reduce", *PASS)))
def test_what_has_no_replicas_waits_for_no_all_reduce(trial: Trial, case: TrainingCase) -> None:
    """After set_requires_all_reduce(False) gradients that no replicas share are reduced with every backward."""
    follows(trial, play, expected(case))


def reaching(setting: str) -> tuple[str, ...]:
    """Passes while a setting is off in the root alone, then everywhere; on again in the root alone, then everywhere."""
    settings = (f"defer {setting} in root", f"defer {setting}", f"resume {setting} in root", f"resume {setting}")
    return tuple(act for one in settings for act in (one, *PASS))


def adds_up(trial: Trial, case: TrainingCase, kind: Kind = "reductions") -> None:
    """Compare what is seen after each action, and what each has ranks say."""
    traces = trial.run(play, case)
    agrees(trial, traces, expected(case))
    says(trial, case, traces, kind=kind)
