"""Passes: other orders of forwards and backwards than one each; none changes a result of the unsharded model."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.refusals import ERRORS, TYPE_ERRORS
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import given
from suites.oracle.judging import finds
from suites.passes import pass_routes as routes
from suites.passes import teacher_routes
from suites.passes.autograd_routes import LOOKS_AT_COLUMNS
from suites.passes.pass_programs import Walking, follows
from suites.passes.pass_strategies import how_cases, in_each_way, pass_cases

SHARDED = Feature.FULLY_SHARD
#: What a refusal of modules that are not sharded may name.
SHARDED_ONLY = ("FSDPModule", "fully_shard", "sharded")


@requirement("passes/child-alone", SHARDED, ranks=2)
@given(case=pass_cases(plain=True, plan=(0,), steps=3))
def test_a_child_may_train_alone_once_the_root_has_run(trial: Trial, case: TrainingCase) -> None:
    """Steps of a sharded child alone, between steps of the whole net, train it as they train the unsharded child."""
    follows(trial, case, routes.CHILD_ALONE)


@requirement("passes/child-tried", SHARDED, ranks=2)
@given(case=pass_cases(plain=True, plan=(0,), reshard_after_forward=True))
def test_a_child_may_be_tried_alone_before_the_optimizer_steps(trial: Trial, case: TrainingCase) -> None:
    """A forward of a sharded child alone, which no backward follows, leaves nothing that the optimizer's step ages."""
    follows(trial, case, routes.CHILD_TRIED)


@requirement("passes/module-twice", SHARDED, ranks=2)
@given(case=pass_cases(plain=True, plan=(0,)))
def test_a_module_may_run_twice_in_one_forward(trial: Trial, case: TrainingCase) -> None:
    """A sharded module that is called twice in one forward gets the gradient of both calls."""
    follows(trial, case, routes.TWICE)


@requirement("passes/two-forwards", SHARDED, ranks=2)
@given(case=pass_cases())
def test_one_backward_may_go_through_two_forwards(trial: Trial, case: TrainingCase) -> None:
    """Two forwards and one backward through both give every parameter the gradient of both."""
    follows(trial, case, routes.TWO_FORWARDS)


@requirement("passes/two-forwards-checkpointed", SHARDED, Feature.CHECKPOINT, ranks=2)
@given(case=pass_cases())
def test_one_backward_may_run_two_checkpointed_forwards_again(trial: Trial, case: TrainingCase) -> None:
    """Two forwards with activation checkpointing and one backward give every parameter the gradient of both."""
    follows(trial, case, routes.TWO_FORWARDS_AGAIN)


def adds_to_the_same(rank: Rank, case: TrainingCase) -> dict[str, bool]:
    """Of every gradient, whether a second backward adds to the very tensor that the first one made."""
    walking, found = Walking(rank, case, routes.TWO_BACKWARDS), []
    for _ in range(2):
        walking.forward("")
        walking.backward("")
        found.append({name: parameter.grad for name, parameter in walking.net.named_parameters()})
    return {name: gradient is found[0][name] for name, gradient in found[1].items()}


@requirement("passes/second-backward", SHARDED, ranks=2)
@given(case=pass_cases())
def test_a_second_backward_adds_to_the_gradients(trial: Trial, case: TrainingCase) -> None:
    """A second backward without zeroing adds to the gradients what it would have given alone."""
    follows(trial, case, routes.TWO_BACKWARDS)


@requirement("passes/same-gradients", SHARDED, ranks=2, level="should")
@given(case=pass_cases())
def test_a_second_backward_adds_in_place(trial: Trial, case: TrainingCase) -> None:
    """A second backward without zeroing adds to the very tensors that the first one made, as autograd itself does."""
    for number, same in enumerate(trial.run(adds_to_the_same, case)):
        trial.agree(f"rank {number}, same objects", same, dict.fromkeys(same, True))


@requirement("passes/no-inputs", SHARDED, ranks=2)
@given(case=pass_cases())
def test_the_root_needs_no_inputs(trial: Trial, case: TrainingCase) -> None:
    """A root whose forward takes no arguments trains as the unsharded model."""
    follows(trial, case, routes.NO_INPUTS)


@requirement("passes/ragged", SHARDED, ranks=2)
@given(case=pass_cases(steps=3))
def test_ranks_may_have_batches_of_other_sizes_or_none(trial: Trial, case: TrainingCase) -> None:
    """Batches may have another size on each rank and in each step, and be empty: gradients are the ranks' mean."""
    follows(trial, case, routes.RAGGED)


@requirement("passes/eval-mode", SHARDED, ranks=2)
@given(case=pass_cases(plan=(0,)))
def test_what_is_in_eval_mode_trains_too(trial: Trial, case: TrainingCase) -> None:
    """A net of which a part is in eval mode, or all, has gradients and trains: the mode is for what modules compute."""
    follows(trial, case, routes.IN_EVAL_MODE)


@requirement("passes/roots", SHARDED, ranks=2)
@given(case=pass_cases(blocks=3))
def test_modules_may_be_sharded_without_one_around_them(trial: Trial, case: TrainingCase) -> None:
    """Three roots in a module that is not sharded, one after the other in each pass, train as unsharded modules."""
    follows(trial, case, routes.ROOTS)


@requirement("passes/adversaries", SHARDED, ranks=2)
@given(case=pass_cases())
def test_one_net_may_learn_through_another_that_learns_meanwhile(trial: Trial, case: TrainingCase) -> None:
    """A net's output trains another net, and then the net itself through the other: all gradients are right."""
    follows(trial, case, routes.ADVERSARIES)


@requirement("passes/root-in-backward", SHARDED, ranks=2)
@given(case=pass_cases(reshard_after_forward=True))
def test_another_root_may_run_in_backward(trial: Trial, case: TrainingCase) -> None:
    """Another root that runs without gradients while backward goes on, and is changed after, runs with what it is."""
    follows(trial, case, teacher_routes.IN_BACKWARD)


@requirement("passes/prefetch-unused", SHARDED, Feature.PREFETCH, ranks=2)
@given(case=pass_cases(blocks=3, plan=(0, 1, 2), reshard_after_forward=True))
def test_what_an_evaluation_gathers_ahead_in_vain_is_gathered_after_a_step(trial: Trial, case: TrainingCase) -> None:
    """What an evaluation gathers ahead and does not run has the new weights once an optimizer has stepped."""
    follows(trial, case, routes.EVALUATED_EARLY)


@requirement("passes/prefetch", SHARDED, Feature.PREFETCH, ranks=2)
@in_each_way(*routes.AHEADS, blocks=4, plan=(0, 1, 2, 3))
def test_gathering_ahead_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """Whatever modules prefetch in forward and backward, the results are the unsharded model's."""
    follows(trial, case, routes.AHEAD)


@requirement("passes/recalled", SHARDED, Feature.UNSHARD_IN_BACKWARD, ranks=2)
@example(case=TrainingCase(2, Stack(3, ("linear",) * 3), (0,), "float64", True, reshard_after_forward=True))
@given(case=pass_cases(blocks=3, plain=True, plan=(0,)))
def test_what_backward_need_not_gather_may_run_again_in_it(trial: Trial, case: TrainingCase) -> None:
    """After set_unshard_in_backward(False) a module that runs again in backward is gathered for that."""
    follows(trial, case, routes.UNNEEDED)


@requirement("passes/optimizers", SHARDED, ranks=2)
@in_each_way(*routes.WAYS, plain=True, steps=3)
def test_optimizers_step_on_sharded_parameters(trial: Trial, case: TrainingCase) -> None:
    """SGD, Adam and AdamW, one by one, foreach or fused, update sharded parameters as they update unsharded ones."""
    follows(trial, case, routes.OPTIMIZERS)


# Methods other than forward.


@requirement("passes/forward-methods", SHARDED, Feature.FORWARD_METHOD, ranks=2)
@given(case=pass_cases())
def test_registered_methods_gather_as_forward_does(trial: Trial, case: TrainingCase) -> None:
    """Training through registered methods, of class or object, in turn with forward, is the unsharded model's."""
    follows(trial, case, routes.METHODS)


@requirement("passes/forward-methods-in-a-list", SHARDED, Feature.FORWARD_METHOD, Feature.MODULE_LISTS, ranks=2)
@given(case=pass_cases())
def test_a_registered_method_may_end_a_list(trial: Trial, case: TrainingCase) -> None:
    """Of modules sharded as a list, the last may run by a registered method, once the others have run forward."""
    follows(trial, case, routes.IN_A_LIST)


#: Nothing varies where only a name is wrong.
SMALL = TrainingCase(world_size=2, net=Stack(dim=2, blocks=("linear", "linear")), sharded=(0,), exact=True)


def register_on_a_plain_module(rank: Rank, case: TrainingCase) -> dict[str, bool]:
    """Register a method, and then one that is not there, on a module that was not sharded."""
    net = case.build()
    for name in ("extra_repr", "no_such_method"):
        rank.implementation.register_forward_method(net, name)
    return {"attributes added": bool({"extra_repr", "no_such_method"} & set(vars(net)))}


def register_what_is_not_there(rank: Rank, case: TrainingCase) -> None:
    """Register a name that a sharded module has not got."""
    subject = rank.implementation
    subject.register_forward_method(subject.fully_shard(case.build(), mesh=rank.mesh()), "no_such_method")


@requirement("passes/forward-methods-elsewhere", SHARDED, Feature.FORWARD_METHOD, ranks=2)
def test_registering_a_method_of_a_plain_module_does_nothing(trial: Trial) -> None:
    """Registering a method of a module that is not sharded changes nothing and raises nothing."""
    finds(trial, register_on_a_plain_module, SMALL, {"attributes added": False})


@requirement("passes/forward-methods-unknown", SHARDED, Feature.FORWARD_METHOD, ranks=2)
def test_registering_a_method_that_is_not_there_is_refused(trial: Trial) -> None:
    """Registering a method that a sharded module has not got raises an error that names it."""
    trial.refuses(register_what_is_not_there, SMALL, "no_such_method", error=("AttributeError", *ERRORS))


def hooks_around_methods(rank: Rank, case: TrainingCase) -> dict[str, int]:
    """How often a user's hooks before and after forward have run after each registered method, and after forward."""
    net: Any = routes.Methods(case.net).to(rank.device)
    seen, subject = list[str](), rank.implementation
    net.register_forward_pre_hook(lambda *_: seen.append("before"))
    net.register_forward_hook(lambda *_: seen.append("after"))
    routes.with_methods(subject, case, net, mesh=rank.mesh())
    x, found = torch.ones(1, case.net.dim, device=rank.device), {}
    for name, run in (("encode", net.encode), ("decode", net.decode), ("forward", net)):
        run(x)
        found[name] = len(seen)
    return found


@requirement("passes/forward-methods-hooks", SHARDED, Feature.FORWARD_METHOD, ranks=2)
def test_hooks_on_forward_are_not_called_around_registered_methods(trial: Trial) -> None:
    """Users' hooks before and after forward run around forward, and not around a method that is registered."""
    finds(trial, hooks_around_methods, SMALL, {"encode": 0, "decode": 0, "forward": 2})


# Unused parameters.


@requirement("passes/unused-in-root", SHARDED, Feature.UNUSED_PARAMETERS, ranks=2)
@given(case=pass_cases(blocks=2, plan=(0,)))
def test_zeros_for_the_unused_may_be_asked_of_the_root_alone(trial: Trial, case: TrainingCase) -> None:
    """set_reduce_scatter_unused_params(True, recurse=False) gives a sharded module below no gradient that is unused."""
    follows(trial, case, routes.UNUSED_BY_TURNS)


# Roots that share a context.


def share_with_a_plain_module(rank: Rank, case: TrainingCase) -> None:
    """Ask a sharded and a plain module to share."""
    subject, net = rank.implementation, case.build()
    subject.share_comm_ctx([subject.fully_shard(net[0], mesh=rank.mesh()), net[1]])


@requirement("passes/shared-context", SHARDED, Feature.SHARED_CONTEXT, ranks=2)
@given(case=pass_cases(blocks=3))
def test_roots_that_share_their_context_train_as_others(trial: Trial, case: TrainingCase) -> None:
    """Three roots that share what they communicate with, one after the other, give the unsharded model's results."""
    follows(trial, case, routes.SHARING_ROOTS)


@requirement("passes/shared-context-stages", SHARDED, Feature.SHARED_CONTEXT, ranks=2)
@given(case=pass_cases(blocks=3))
def test_stages_of_a_pipeline_share_their_context(trial: Trial, case: TrainingCase) -> None:
    """Where three roots share what they communicate with, backward may go through them one by one, from the last."""
    follows(trial, case, routes.SHARING_STAGES)


# As documented, a root that does not reshard after forward would not see what changes meanwhile.
@requirement("passes/shared-context-teacher", SHARDED, Feature.SHARED_CONTEXT, ranks=2)
@given(case=pass_cases(reshard_after_forward=True, steps=3))
def test_another_root_of_a_shared_context_may_be_changed_in_every_step(trial: Trial, case: TrainingCase) -> None:
    """A teacher that shares what a student communicates with, and is changed in each step, runs with what it is."""
    follows(trial, case, teacher_routes.BESIDE)


@requirement("passes/shared-context-refused", SHARDED, Feature.SHARED_CONTEXT, ranks=2)
def test_a_plain_module_cannot_share_a_context(trial: Trial) -> None:
    """share_comm_ctx with a module that is not sharded raises an error that asks for sharded ones."""
    trial.refuses(share_with_a_plain_module, SMALL, *SHARDED_ONLY, error=TYPE_ERRORS)


# Other dims than the first.


@requirement("passes/last-dim", SHARDED, Feature.SHARD_PLACEMENT, ranks=2)
@given(case=pass_cases(dim=4))
def test_parameters_cut_along_their_last_dim_train_as_others(trial: Trial, case: TrainingCase) -> None:
    """With every parameter sharded along its last dim, Shard(-1), training gives the unsharded model's results."""
    follows(trial, case, routes.LAST_DIM)


@requirement("passes/last-dim-inference", SHARDED, Feature.SHARD_PLACEMENT, ranks=2)
@given(case=how_cases("inference_mode", dim=4))
def test_parameters_cut_along_their_last_dim_are_gathered_in_inference_mode(trial: Trial, case: TrainingCase) -> None:
    """A net sharded along the last dim that never trained gives the unsharded model's outputs in inference mode."""
    follows(trial, case, LOOKS_AT_COLUMNS)
