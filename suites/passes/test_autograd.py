"""Autograd: whatever a loss leaves out and however modules pass tensors on, gradients are the unsharded model's."""

from __future__ import annotations

import torch
from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import given
from suites.passes import autograd_routes as routes
from suites.passes import containers, function_routes, hook_routes
from suites.passes.containers import PACK
from suites.passes.pass_programs import Walking, follows, walk
from suites.passes.pass_strategies import how_cases, in_each_way, pass_cases
from suites.passes.passes import Route

SHARDED = Feature.FULLY_SHARD
PLAIN = Route()
#: Blocks that raise, and when: before or after they ran in forward, or in their backward.
EARLY = [f"{block} {moment}" for block in range(3) for moment in ("before", "after")]
LATE = [f"{block} backward" for block in range(3)]


@requirement("autograd/unused-output", SHARDED, ranks=2)
@given(case=pass_cases(blocks=3))
def test_an_output_that_no_loss_uses_changes_nothing_else(trial: Trial, case: TrainingCase) -> None:
    """Where the loss uses one of the net's outputs, another in each step, gradients are the unsharded model's."""
    follows(trial, case, routes.FORK)


@requirement("autograd/unused-output-moves", SHARDED, Feature.NONE_FOR_UNUSED, ranks=2)
@example(case=TrainingCase(2, Stack(3, ("linear",) * 3), (0, 1, 2), "float64", reshard_after_forward=False))
@given(case=pass_cases(blocks=3))
def test_what_no_loss_uses_may_move_by_momentum(trial: Trial, case: TrainingCase) -> None:
    """Parameters that backward has not come to, and that momentum moves all the same, are new in the next forward."""
    follows(trial, case, routes.FORK_MOVES)


@requirement("autograd/unused-output-inside", SHARDED, ranks=2)
@given(case=pass_cases(blocks=3, plan=(0,)))
def test_an_output_of_a_child_that_no_loss_uses_changes_nothing_else(trial: Trial, case: TrainingCase) -> None:
    """Where the loss uses one of a sharded child's two outputs, gradients are the unsharded model's."""
    follows(trial, case, routes.FORK_INSIDE)


@requirement("autograd/views", SHARDED, ranks=2)
@given(case=pass_cases())
def test_a_view_that_no_loss_uses_changes_nothing_else(trial: Trial, case: TrainingCase) -> None:
    """Where outputs are two views of one tensor, and the loss uses either, gradients are the unsharded model's."""
    follows(trial, case, routes.VIEWS)


@requirement("autograd/unused-module", SHARDED, ranks=2)
@example(case=TrainingCase(2, Stack(2, ("linear",) * 3), dtype="float64", exact=True))
@given(case=pass_cases(blocks=3))
def test_a_module_that_is_never_used_gets_no_gradient(trial: Trial, case: TrainingCase) -> None:
    """Parameters that forward never uses have no gradient and stay as they are; all others train as unsharded."""
    follows(trial, case, routes.SKIPS)


@requirement("autograd/kept-aside", SHARDED, ranks=2)
@given(case=pass_cases(plain=True))
def test_a_loss_may_take_what_modules_kept_aside(trial: Trial, case: TrainingCase) -> None:
    """Where the loss adds to outputs what sharded modules kept in forward, gradients are the unsharded model's."""
    follows(trial, case, routes.KEEPS)


@requirement("autograd/unused-input", SHARDED, ranks=2)
@given(case=pass_cases(blocks=3, plan=(0, 1)))
def test_a_frozen_module_may_be_given_what_it_does_not_use(trial: Trial, case: TrainingCase) -> None:
    """Where a frozen, sharded module does not use an input that needs gradients, training is as unsharded."""
    follows(trial, case, routes.UNUSED)


@requirement("autograd/containers", SHARDED, ranks=2)
@in_each_way(*PACK)
def test_tensors_may_be_passed_on_in_containers(trial: Trial, case: TrainingCase) -> None:
    """Lists, tuples, dicts, named tuples and dataclasses, also nested, pass through sharded modules with gradients."""
    follows(trial, case, containers.BOXES)


@requirement("autograd/keywords", SHARDED, ranks=2)
@given(case=pass_cases())
def test_tensors_may_be_passed_by_keyword_only(trial: Trial, case: TrainingCase) -> None:
    """Inputs passed by keyword only get their gradients, and so do the parameters."""
    follows(trial, case, containers.KEYWORDS)


@requirement("autograd/filled", SHARDED, ranks=2)
@given(case=pass_cases())
def test_what_forward_puts_into_an_empty_list_or_dict_is_there(trial: Trial, case: TrainingCase) -> None:
    """What a sharded module's forward puts into an empty list or dict that it is given is there afterwards."""
    follows(trial, case, containers.NOTES)


@requirement("autograd/other-outputs", SHARDED, ranks=2)
@given(case=pass_cases())
def test_outputs_that_need_no_gradient_pass_as_they_are(trial: Trial, case: TrainingCase) -> None:
    """Outputs that need no gradient, or are no tensors, come out as they went in, and training is as unsharded."""
    follows(trial, case, containers.MIXED)


@requirement("autograd/outputs-in-place", SHARDED, ranks=2)
@in_each_way(*routes.IN_PLACE)
def test_outputs_may_be_changed_in_place(trial: Trial, case: TrainingCase) -> None:
    """Outputs of sharded modules, the root's too, may be changed in place, in part or as a whole, as unsharded ones."""
    follows(trial, case, routes.CHANGED)


@requirement("autograd/without-gradients", SHARDED, ranks=2)
@in_each_way("no_grad")
def test_forwards_without_gradients_may_come_between_steps(trial: Trial, case: TrainingCase) -> None:
    """Forwards under no_grad, the very first one too, give the unsharded model's outputs and disturb no step."""
    follows(trial, case, routes.WATCHED)


@requirement("autograd/inference-mode", SHARDED, ranks=2)
@in_each_way("inference_mode")
def test_forwards_in_inference_mode_may_come_after_the_first_step(trial: Trial, case: TrainingCase) -> None:
    """Once training has begun, forwards in inference mode give the unsharded model's outputs and disturb no step."""
    follows(trial, case, routes.WATCHED_LATER)


@requirement("autograd/inference-first", SHARDED, ranks=2)
@in_each_way("inference_mode")
def test_forwards_in_inference_mode_may_come_before_the_first_step(trial: Trial, case: TrainingCase) -> None:
    """Forwards in inference mode, the very first one too, give the unsharded model's outputs and disturb no step."""
    follows(trial, case, routes.WATCHED)


@requirement("autograd/inference-alone", SHARDED, ranks=2)
@given(case=how_cases("inference_mode"))
def test_a_net_that_never_trains_runs_in_inference_mode(trial: Trial, case: TrainingCase) -> None:
    """Forwards in inference mode give the unsharded model's outputs, time and again, also if training never began."""
    follows(trial, case, routes.LOOKS)


@requirement("autograd/detached-chunks", SHARDED, ranks=2)
@given(case=pass_cases(blocks=3, plan=(0, 2), batch=4))
def test_a_head_may_train_apart_by_chunks(trial: Trial, case: TrainingCase) -> None:
    """Chunks of a detached output may go backward before the output, and chunks of what takes no gradient after it."""
    follows(trial, case, routes.DETACHED)
    follows(trial, case, routes.FIXED)


@requirement("autograd/retained-graph", SHARDED, ranks=2)
@given(case=pass_cases(blocks=3))
def test_several_backwards_may_go_through_one_trunk(trial: Trial, case: TrainingCase) -> None:
    """Several backwards through one retained graph, of which only the last is flagged as last, add their gradients."""
    follows(trial, case, routes.HEADS)


@requirement("autograd/retained-outputs", SHARDED, ranks=2)
@given(case=pass_cases(blocks=3, plan=(0,)))
def test_each_output_of_a_module_may_go_backward_by_itself(trial: Trial, case: TrainingCase) -> None:
    """A backward from each of two outputs of one sharded module, through a retained graph, adds its gradients."""
    follows(trial, case, routes.HALVES)


@requirement("autograd/inputs-alone", SHARDED, ranks=2)
@given(case=pass_cases())
def test_gradients_of_inputs_alone_leave_those_of_parameters(trial: Trial, case: TrainingCase) -> None:
    """Before and after a pass of training, torch.autograd.grad of inputs gives theirs, and no parameter another."""
    follows(trial, case, routes.OF_INPUTS)


@requirement("autograd/penalty", SHARDED, Feature.DTENSORS, ranks=2)
@given(case=pass_cases())
def test_a_loss_may_take_the_parameters_too(trial: Trial, case: TrainingCase) -> None:
    """Where the loss adds squares of the parameters, looked at before or after forward, gradients are of both."""
    follows(trial, case, routes.PENALISED)


@requirement("autograd/penalty-apart", SHARDED, Feature.UNSHARD, ranks=2, level="should")
@given(case=pass_cases(plan=(0,)))
def test_a_penalty_may_go_backward_alone(trial: Trial, case: TrainingCase) -> None:
    """A backward from whole parameters, after unshard() and before reshard(), counts with the backward that follows."""
    follows(trial, case, routes.PENALISED_APART)


@requirement("autograd/own-gradients", SHARDED, ranks=2)
@given(case=pass_cases(plain=True))
def test_functions_may_add_to_gradients_themselves(trial: Trial, case: TrainingCase) -> None:
    """What an autograd function's backward adds to a weight's gradient itself is reduced as all else is."""
    follows(trial, case, function_routes.FUSED)


#: Levels of forward-mode differentiation are the process': ranks that are threads would be within each other's.
@requirement("autograd/slopes", SHARDED, Feature.NONE_FOR_UNUSED, ranks=2, worlds=("processes",))
@given(case=pass_cases(plain=True))
def test_a_loss_may_be_of_a_derivative_alone(trial: Trial, case: TrainingCase) -> None:
    """A loss may take torch.func.jvp's derivative of a net, alone or beside its value, and training is as unsharded."""
    follows(trial, case, function_routes.SLOPES)


# Hooks.


@requirement("autograd/post-accumulate-hooks", SHARDED, ranks=2)
@given(case=pass_cases())
def test_hooks_after_accumulation_see_the_reduced_gradient_once(trial: Trial, case: TrainingCase) -> None:
    """A hook after accumulation, given at any time, is called once a backward, with the reduced gradient there."""
    follows(trial, case, hook_routes.HOOKED)


@requirement("autograd/post-accumulate-writes", SHARDED, ranks=2, level="should")
@given(case=pass_cases())
def test_hooks_after_accumulation_may_write_to_the_nets_parameters(trial: Trial, case: TrainingCase) -> None:
    """What hooks after accumulation write into the parameters that the net has then is there after backward."""
    follows(trial, case, hook_routes.NEGATED)


@requirement("autograd/backward-hooks", SHARDED, ranks=2)
@given(case=pass_cases(plan=(0,)))
def test_full_backward_hooks_are_called_once(trial: Trial, case: TrainingCase) -> None:
    """Full backward hooks on modules, sharded or not, are called once each, and training is the unsharded model's."""
    follows(trial, case, hook_routes.BACKWARD_HOOKS)


@requirement("autograd/backward-hooks-full", SHARDED, Feature.PLAIN_FORWARD, ranks=2, level="should")
@given(case=pass_cases(plan=(0,)))
def test_full_backward_hooks_find_full_parameters(trial: Trial, case: TrainingCase) -> None:
    """Full backward hooks on modules, sharded or not, find full parameters registered."""
    follows(trial, case, hook_routes.FULL_IN_BACKWARD_HOOKS)


# Of two ranks' parts sums are the same in any order.
@requirement("autograd/optimizer-in-backward", SHARDED, ranks=2)
@given(case=pass_cases(world_size=2, steps=3))
def test_optimizers_may_step_in_backward(trial: Trial, case: TrainingCase) -> None:
    """Optimizers that step in post-accumulate-grad hooks give bit for bit what they give when they step afterwards."""
    after, inside = (
        [[seen["parameters"] for seen in trace if "parameters" in seen] for trace in trial.run(walk, case, route)]
        for route in (hook_routes.ADAM, hook_routes.ADAM_IN_BACKWARD)
    )
    for number, (want, got) in enumerate(zip(after, inside, strict=True)):
        trial.agree(f"rank {number}", got, want)


# Exceptions.


@requirement("autograd/reset-after-forward", SHARDED, Feature.RESET, ranks=2)
@in_each_way(*EARLY, blocks=3)
def test_a_forward_that_raised_can_be_reset(trial: Trial, case: TrainingCase) -> None:
    """After an exception in forward and reset_iter_state() on the root, all is cut again and trains as unsharded."""
    follows(trial, case, hook_routes.BROKEN)


@requirement("autograd/reset-after-backward", SHARDED, Feature.RESET, ranks=2)
@in_each_way(*LATE, blocks=3)
def test_a_backward_that_raised_can_be_reset(trial: Trial, case: TrainingCase) -> None:
    """After an exception in backward, reset_iter_state() on the root and zero_grad(), all is cut and trains again."""
    follows(trial, case, hook_routes.BROKEN)


def reset_a_child(rank: Rank, case: TrainingCase) -> None:
    """After a forward through the root, reset a child."""
    net = Walking(rank, case, PLAIN).net
    net(torch.ones(1, case.net.dim, dtype=case.torch_dtype, device=rank.device))
    net.blocks[0].reset_iter_state()


@requirement("autograd/reset-below-root", SHARDED, Feature.RESET, ranks=2, level="should")
def test_only_the_root_can_be_reset(trial: Trial) -> None:
    """reset_iter_state() of a sharded module that is not the root raises an error that says so."""
    case = TrainingCase(world_size=2, net=Stack(dim=2, blocks=("linear", "linear")), sharded=(0,), exact=True)
    trial.refuses(reset_a_child, case, "root")


@requirement("autograd/reset-before-forward", SHARDED, Feature.RESET, ranks=2)
@given(case=pass_cases(blocks=2, plan=(0,)))
def test_a_reset_before_forward_changes_nothing(trial: Trial, case: TrainingCase) -> None:
    """reset_iter_state() of modules below the root before its forward, refused or not, changes nothing in training."""
    follows(trial, case, hook_routes.RESET_BLOCKS)
