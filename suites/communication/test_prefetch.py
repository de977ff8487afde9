"""Prefetching: in which order groups of parameters are gathered, and what is gathered ahead of its use."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.refusals import TYPE_ERRORS
from harness.vendor import Feature
from suites.communication import ladder as steps
from suites.communication import ladder_programs as programs
from suites.communication.ladder import LadderCase, Rungs, ladders, only, precedes
from suites.communication.ladder_programs import comes_in_order
from suites.communication.played import play, training_after
from suites.kit import expected_collectives as wire
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import given_half, stacks, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import agrees, follows
from suites.oracle.situation import PASS

SHARDED, PREFETCH = Feature.FULLY_SHARD, Feature.PREFETCH


@requirement("prefetch/forward-order", SHARDED, ranks=2)
@given_half(case=ladders(lists=True))
def test_forward_gathers_the_root_and_then_groups_as_they_run(trial: Trial, case: LadderCase) -> None:
    """Forward gathers the root's parameters first, then each group, a module or a list, in the order of running."""
    pairs = [(place, place) for place in range(len(case.groups))]
    comes_in_order(trial, case, "forward", pairs, "run", steps.gathers(case, "forward"))


@requirement("prefetch/backward-order", SHARDED, ranks=2)
@example(case=LadderCase(2))
@example(
    case=LadderCase(
        2, Rungs(multipliers=(1, 2, 4), tail=True), (0, 1), reshard_after_forward=None, groups=((0, 1), (2,))
    )
)
@given_half(case=ladders(lists=True))
def test_backward_gathers_and_reduces_in_reverse(trial: Trial, case: LadderCase) -> None:
    """Backward gathers what was freed in the reverse of the order of running, and reduces groups in that order too."""
    goes_backward(trial, case)


@requirement("prefetch/backward-default", SHARDED, level="should", ranks=2)
@example(case=LadderCase(2))
@given_half(case=ladders(lists=True, reshard_after_forward=True))
def test_backward_gathers_a_group_before_it_reduces_the_next(trial: Trial, case: LadderCase) -> None:
    """In backward a group is gathered before the gradients of the group that ran after it are reduced."""
    comes_in_order(trial, case, "backward", steps.pairs_ahead(case, default=True), "reduce")


@requirement("prefetch/backward-in-flight", SHARDED, Feature.ACCUMULATION, level="should", ranks=2)
@example(case=LadderCase(2))
@given_half(case=ladders(reshard_after_forward=True))
def test_each_of_several_backwards_gathers_ahead(trial: Trial, case: LadderCase) -> None:
    """With set_is_last_backward(False) set once, the last of three backwards gathers ahead as the first does."""
    pairs = steps.pairs_ahead(case, default=True)
    comes_in_order(trial, case, "backward", pairs, "reduce", program=programs.in_flight)


@requirement("prefetch/backward-nested", SHARDED, level="should", ranks=2)
@example(case=LadderCase(2, nested=True))
@example(case=LadderCase(2, Rungs(tail=True), nested=True))
@given_half(case=ladders(nested=True, reshard_after_forward=True))
def test_layers_around_groups_do_not_hold_up_gathers(trial: Trial, case: LadderCase) -> None:
    """Groups in sharded modules without parameters of their own, as in layers, are gathered ahead in backward, too."""
    comes_in_order(trial, case, "backward", steps.pairs_ahead(case, default=True), "reduce")


@requirement("prefetch/backward-unused", SHARDED, Feature.ONE_MESSAGE, level="should", ranks=2)
def test_what_a_loss_does_not_use_is_not_gathered_for_a_root_without_parameters(trial: Trial) -> None:
    """Backward from the first of two heads gathers it and the trunk; for a root without parameters nothing more."""
    case = TrainingCase(2, Stack(3, ("linear",) * 3), (0, 1, 2), reshard_after_forward=True)
    for number, count in enumerate(trial.run(programs.gathers_for_the_first_head, case)):
        trial.holds(count <= 2, f"rank {number}: expected 2 gathers at most, got {count}")


@requirement("prefetch/recomputed", SHARDED, Feature.CHECKPOINT, ranks=2)
@given_half(case=ladders(reshard_after_forward=True))
def test_recomputation_does_not_change_the_order(trial: Trial, case: LadderCase) -> None:
    """Where groups run again in backward, gathers and reductions come in the same order as where they do not."""
    goes_backward(trial, case, recomputed=True)


@requirement("prefetch/reduces-meanwhile", SHARDED, level="should", ranks=2)
@example(case=LadderCase(2))
@given_half(case=ladders())
def test_gradients_are_reduced_while_backward_goes_on(trial: Trial, case: LadderCase) -> None:
    """A group's gradients begin to be reduced before backward is through the group that ran before it."""
    comes_meanwhile(trial, case, "reduce")


@requirement("prefetch/hands-out-meanwhile", SHARDED, level="should", ranks=2)
@example(case=LadderCase(2))
@given_half(case=ladders())
def test_gradients_are_handed_out_while_backward_goes_on(trial: Trial, case: LadderCase) -> None:
    """A group's hooks after accumulation run, and may free its gradients, before backward is two groups further."""
    comes_meanwhile(trial, case, "hook", hooked=True)


@requirement("prefetch/forward-lists", SHARDED, PREFETCH, ranks=2)
@example(case=LadderCase(2, ahead=((0, (1, 2)),)))
@example(case=LadderCase(2, ahead=((0, (1,)),)))
@given_half(case=ladders(ahead="later"))
def test_modules_are_gathered_ahead_in_forward_as_listed(trial: Trial, case: LadderCase) -> None:
    """What was last set to be gathered ahead in forward is so after the module's gather, in order, before it runs."""
    comes_in_order(trial, case, "forward", steps.pairs_ahead(case), "run", steps.gathers(case, "forward"))


@requirement("prefetch/backward-lists", SHARDED, PREFETCH, ranks=2)
@example(case=LadderCase(2, ahead=((2, (0, 1)),)))
@given_half(case=ladders(ahead="earlier", reshard_after_forward=True))
def test_modules_are_gathered_ahead_in_backward_as_listed(trial: Trial, case: LadderCase) -> None:
    """What is set to be gathered ahead in backward is so in order, before the module's own gradients are reduced."""
    comes_in_order(trial, case, "backward", steps.pairs_ahead(case), "reduce", steps.gathers(case, "backward"))


NET = Stack(3, ("linear", "mlp"), 1)
#: In backward the first block gathers the second again, which is over by then, and must be gathered anew after a step.
FINISHED = ("ahead backward 0 1", "ahead backward 1 1", "ahead backward root 0")
SMALL = stacks(most_blocks=2, largest=4, buffers=False).flatmap(
    lambda net: training_cases(exact=True, dtype="float64", net=net, sharded=tuple(range(len(net.blocks))))
)


@requirement("prefetch/of-no-use", SHARDED, PREFETCH, ranks=2)
@example(case=TrainingCase(2, NET, (0, 1), "float64", True, acts=(*FINISHED, *(*PASS, "step", "drop") * 2)))
@given_half(case=training_after(SMALL, programs.anything_ahead))
def test_gathering_the_wrong_modules_ahead_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """Whatever modules are gathered ahead in backward, finished ones included, training is the unsharded model's."""
    follows(trial, play, expected(case))


@requirement("prefetch/by-hand", SHARDED, Feature.UNSHARD, Feature.ONE_MESSAGE, ranks=2)
@given_half(case=training_cases(exact=True, acts=PASS))
def test_groups_may_be_gathered_by_hand_between_other_collectives(trial: Trial, case: TrainingCase) -> None:
    """unshard(async_op=True) of every module is used by forward, and disturbs no other collective under way."""
    total = float(sum(range(case.world_size)))
    found = trial.run(programs.unsharded_by_hand, case)
    agrees(trial, [got["trace"] for got in found], expected(case))
    for number, got in enumerate(found):
        trial.agree(f"rank {number}, other sums", got["sums"], [total] * (len(case.sharded) + 1))
        gathers = wire.tallied(wire.gathers(case, number, wire.group_sizes(case)))
        trial.agree(f"rank {number}, gathers", wire.counted(got["gathers"]), gathers)


@requirement("prefetch/refuses", SHARDED, PREFETCH)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_modules_that_are_not_sharded_cannot_be_gathered_ahead(trial: Trial, direction: str) -> None:
    """Listing a module that is not sharded raises an error that asks for a sharded one."""
    case = TrainingCase(2, NET, acts=(f"ahead {direction} root 0",))
    trial.refuses(play, case, "FSDPModule", "fully_shard", "sharded", error=TYPE_ERRORS)


def comes_meanwhile(trial: Trial, case: LadderCase, verb: str, hooked: bool = False) -> None:
    """Require that what ``verb`` says of a group comes before backward enters the group two before it."""
    for number, got in enumerate(trial.run(partial(programs.in_order, hooked=hooked), case)):
        words = got["backward"]
        for place in range(2, len(case.groups)):
            trial.holds(
                precedes(words, f"{verb} {place}", f"enter {place - 2}"),
                f"rank {number}: expected '{verb} {place}' before 'enter {place - 2}' in {words}",
            )


def goes_backward(trial: Trial, case: LadderCase, recomputed: bool = False) -> None:
    """Compare the order of gathers, and that of reductions but for the root's, which may come at any time."""
    reduced = [f"reduce {place}" for place in reversed(range(len(case.groups)))]
    for number, got in enumerate(trial.run(programs.in_order, case, "", recomputed)):
        trial.agree(f"rank {number}", only(got["backward"], "gather"), steps.gathers(case, "backward"))
        got_reduced = [word for word in only(got["backward"], "reduce") if word != f"reduce {wire.ROOT}"]
        trial.agree(f"rank {number}", got_reduced, reduced)
