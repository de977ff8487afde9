"""Implementations that are wrong about what a loss leaves out, how tensors are passed on, or when hooks are called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from suites.oracle.layout import own
from tests.mutants.hooking import each_gradient, instead, is_root, outputs, sharded, when_alone
from tests.mutants.making import mutant, right
from tests.mutants.passes.passes_chapter import reduces_unless_alone


def tied(kind: type) -> Any:
    """Every output of such a container hangs on all others, so that none is unused."""

    def change(module: Any, output: Any) -> Any:
        if type(output) is not kind:
            return output
        return kind(one + 0 * sum(output) for one in output)

    return outputs(change)


def second_is_cut(module: Any) -> None:
    """Only the first tensor of a container is followed."""

    def change(module: Any, args: Any) -> Any:
        box, *rest = args
        if type(box) in (list, tuple):
            return (type(box)((box[0], box[1].detach())), *rest)
        return ({**box, "side": box["side"].detach()}, *rest) if isinstance(box, dict) and "side" in box else args

    module.register_forward_pre_hook(change)


def keywords_are_cut(module: Any) -> None:
    """Tensors passed by keyword are not followed."""

    def change(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {key: value.detach() if isinstance(value, Tensor) else value for key, value in kwargs.items()}

    module.register_forward_pre_hook(change, with_kwargs=True)


def floats_only(module: Any, output: Any) -> Any:
    """Whatever comes out becomes floating."""
    if not isinstance(output, dict):
        return output
    return {key: value.double() if isinstance(value, Tensor) else value for key, value in output.items()}


class Through(torch.autograd.Function):
    """Gives what it is given, so as to be called in backward: autograd refuses to change that in place.

    ``register_full_backward_pre_hook`` does the same.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """The same."""
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The same."""
        return gradient


def through_a_function(module: Any, output: Any) -> Any:
    """Each output that needs a gradient comes out of a function as it went in."""
    return tree_map_only(Tensor, lambda tensor: Through.apply(tensor) if tensor.requires_grad else tensor, output)


def cuts_what_is_kept(module: Any, output: Any) -> Any:
    """Only what comes out is followed, not what stays within."""
    for each in module.modules():
        vars(each).update({name: kept.detach() for name, kept in vars(each).items() if isinstance(kept, Tensor)})
    return output


def waits_for_each_input(module: Any) -> None:
    """A frozen module frees its parameters when its inputs have their gradients, and fails if it has none to free."""

    def never(gradient: Tensor) -> None:
        raise RuntimeError("nothing was gathered for backward")

    def change(module: Any, args: Any) -> None:
        if not any(parameter.requires_grad for parameter in module.parameters()):
            tree_map_only(Tensor, lambda tensor: tensor.requires_grad and tensor.register_hook(never), args)

    module.register_forward_pre_hook(change, prepend=True)


def drops_gradients(without: Any) -> Any:
    """A forward without gradients takes those that are there along."""

    def apply(module: Any) -> None:
        parameters = sharded(module)

        def drop(*_: Any) -> None:
            if without():
                for parameter in parameters:
                    parameter.grad = None

        module.register_forward_pre_hook(drop)

    return apply


def doubled_before_training(module: Any, output: Any) -> Any:
    """In inference mode, what was never trained gives twice what it should."""
    if torch.is_grad_enabled():
        vars(module)["has_trained"] = True
    is_new = torch.is_inference_mode_enabled() and "has_trained" not in vars(module)
    return output * 2 if is_new else output


def keeps_last_only(module: Any) -> None:
    """Gradients of all but the last backward are dropped."""
    if not is_root(module):
        return
    flag = [True]
    right_method = module.set_is_last_backward
    module.set_is_last_backward = lambda last: (flag.__setitem__(0, last), right_method(last))[1]

    def drop(parameter: Any) -> None:
        if not flag[0]:
            parameter.grad = None

    each_gradient(drop)(module)


def hooks(change: Any) -> Any:
    """A change to each module: hooks after accumulation are called as ``change(hook, parameter)``."""

    def apply(module: Any) -> None:
        for parameter in sharded(module):
            parameter.register_post_accumulate_grad_hook = lambda hook, parameter=parameter: type(
                parameter
            ).register_post_accumulate_grad_hook(parameter, lambda p: change(hook, p))

    return apply


def twice(hook: Any, parameter: Any) -> None:
    """Call it again."""
    hook(parameter)
    hook(parameter)


def negated(hook: Any, parameter: Any) -> None:
    """Call it with another gradient."""
    parameter.grad.neg_()
    hook(parameter)


def called_twice(module: Any, register: Any, hook: Any) -> Any:
    """A hook that is called twice."""
    register(hook)
    return register(hook)


def reshards_before(module: Any, right_method: Any, hook: Any, **options: Any) -> Any:
    """Full backward hooks come when all is resharded."""

    def late(module: Any, *gradients: Any) -> Any:
        module.reshard()
        return hook(module, *gradients)

    return right_method(late, **options)


def stops_reducing(module: Any, right_method: Any) -> None:
    """After a reset, gradients are not reduced any more."""
    right_method()
    module.set_requires_gradient_sync(False)


def resets_anything(module: Any, right_method: Any) -> None:
    """A child may be reset, too: nothing happens."""
    if is_root(module):
        right_method()


def makes_a_root(module: Any, right_method: Any) -> None:
    """What is reset becomes the root, if there is none yet."""
    right.fully_shard.state(module)._lazy_init()
    right_method()


def reduces_what_is_there(module: Any, output: Any) -> Any:
    """At the end of each backward gradients are reduced, also those that it did not change."""
    before: list[tuple[Any, Tensor]] = []

    def end() -> None:
        for parameter, gradient in before:
            if parameter.grad is not None and torch.equal(own(parameter.grad), gradient):
                own(parameter.grad).div_(2)

    def hook(gradient: Tensor) -> None:
        before[:] = [(p, own(p.grad).clone()) for p in module.parameters() if p.grad is not None]
        torch.autograd.Variable._execution_engine.queue_callback(end)

    if isinstance(output, Tensor) and output.requires_grad:
        output.register_hook(hook)
    return output


def drops_direct_gradients(module: Any) -> None:
    """Gradients that autograd gives sharded parameters by itself are zero: such hooks are called for no others."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(torch.zeros_like)


ties_outputs = mutant("autograd/unused-output", tied(list))
ties_inner_outputs = mutant("autograd/unused-output-inside", tied(tuple))
#: Parameters without gradients get zeros.
zeros_for_unused = mutant("autograd/unused-module", lambda module: module.set_reduce_scatter_unused_params(True))
follows_outputs_only = mutant("autograd/kept-aside", outputs(cuts_what_is_kept))
frees_what_is_not_there = mutant("autograd/unused-input", waits_for_each_input)
follows_first_tensors = mutant("autograd/containers", second_is_cut)
follows_no_keywords = mutant("autograd/keywords", keywords_are_cut)
gives_floats = mutant("autograd/other-outputs", outputs(floats_only, is_root))
gives_views = mutant("autograd/outputs-in-place", outputs(through_a_function))
evaluation_drops_gradients = mutant("autograd/without-gradients", drops_gradients(lambda: not torch.is_grad_enabled()))
inference_drops_gradients = mutant("autograd/inference-mode", drops_gradients(torch.is_inference_mode_enabled))
needs_training_first = mutant("autograd/inference-alone", outputs(doubled_before_training, is_root))
reduces_again = mutant("autograd/inputs-alone", outputs(reduces_what_is_there, is_root))
knows_its_own_gradients = mutant("autograd/penalty", drops_direct_gradients)
keeps_chunks = mutant("autograd/detached-chunks", when_alone(reduces_unless_alone))
last_backward_only = mutant("autograd/retained-graph", keeps_last_only)
hooks_twice = mutant("autograd/post-accumulate-hooks", hooks(twice))
hooks_see_another = mutant("autograd/optimizer-in-backward", hooks(negated))
calls_hooks_twice = mutant("autograd/backward-hooks", instead("register_full_backward_hook", called_twice))
hooks_after_resharding = mutant("autograd/backward-hooks-full", instead("register_full_backward_hook", reshards_before))
resets_too_much = mutant("autograd/reset-after-forward", instead("reset_iter_state", stops_reducing))
resets_children = mutant("autograd/reset-below-root", instead("reset_iter_state", resets_anything))
makes_roots = mutant("autograd/reset-before-forward", instead("reset_iter_state", makes_a_root))

RAISES = ("frees_what_is_not_there", "gives_views", "makes_roots")
