"""Implementations that train right by one forward and one backward, and not by other ways."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.mutants import name_of
from tests.mutants.hooking import each_gradient, instead, is_root, outputs, second_call_is_halved, when_alone
from tests.mutants.making import called_otherwise, mutant, reduced, reducing, right


def reduces_unless_alone(module: Any, alone: bool) -> None:
    """A child that runs by itself keeps its gradients."""
    module.set_requires_gradient_sync(not alone)


def stays_full_alone(module: Any, alone: bool) -> None:
    """A child that runs alone stays as it was gathered."""
    module.set_reshard_after_forward(not alone)


def made_anew(parameter: Any) -> None:
    """A new gradient object every time."""
    parameter.grad = parameter.grad.clone()


def of_the_last_alone(parameter: Any) -> None:
    """What a second backward adds to takes its values."""
    noted = vars(parameter).get("noted")
    total = parameter.grad.clone()
    if noted is not None and noted[0] is parameter.grad:
        parameter.grad.sub_(noted[1])
    parameter.noted = parameter.grad, total


def looks_at_first_input(module: Any) -> None:
    """Take a first input for granted."""
    if is_root(module):
        module.register_forward_pre_hook(lambda module, args: (args[0],))


def counts_ranks_with_gradients(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """The mean of those ranks whose gradients are not all zero."""
    reduced(output, input, group, op)
    ranks = input.new_tensor(float(input.any()))
    dist.all_reduce(ranks, group=group)
    output.mul_(dist.get_world_size(group) / ranks.clamp(min=1).to(output.dtype))


def begins_the_graph(module: Any) -> None:
    """A module that runs with no sharded one around it takes its inputs for data, from which nothing goes back."""

    def cut(module: Any, args: tuple[Any, ...]) -> Any:
        return None if vars(module).get("inside") else tuple(each.detach() for each in args)

    when_alone(lambda *_: None)(module)
    if not is_root(module):
        module.register_forward_pre_hook(cut)


#: How many backwards have ended on this thread, which is a rank.
here = threading.local()


def cut_in_eval_mode(module: Any, output: Any) -> Any:
    """A block that is in eval mode is taken to have no backward."""
    return output if module.training else output.detach()


def forgets_forwards(module: Any, output: Any) -> Any:
    """When any backward ends, all forwards that still wait for theirs are forgotten."""
    before = vars(here).setdefault("ended", 0)

    def end() -> None:
        here.ended += 1

    def hook(gradient: Tensor) -> Tensor:
        torch.autograd.Variable._execution_engine.queue_callback(end)
        return gradient * (here.ended == before)

    if output.requires_grad:
        output.register_hook(hook)
    return output


def stale_ahead(module: Any, right_method: Any, modules: list[Any]) -> None:
    """What is gathered ahead is kept for ever."""
    right_method(modules)
    for each in modules:
        each.set_reshard_after_backward(False)


def first_again(parameter: Any) -> None:
    """The gradient of the first backward, again and again."""
    first = vars(parameter).setdefault("first", parameter.grad.clone())
    parameter.grad = first.clone()


def checkpoint_once(module: Any, **options: Any) -> Any:
    """Checkpoint, and lose half of the second call."""
    right.checkpoint(module, **options)
    second_call_is_halved(lambda module: True)(module)
    return module


def set_whatever(module: Any, name: str) -> None:
    """Set the method on whatever module, be it there or not."""
    vars(module)[name] = getattr(module, name, None)


def register_if_there(module: Any, name: str) -> None:
    """Say nothing where there is no such method."""
    if hasattr(module, name):
        right.register_forward_method(module, name)


def one_reduces_for_all(modules: list[Any]) -> None:
    """Only the first of those that share reduces."""
    for module in modules[1:]:
        module.set_requires_gradient_sync(False)


def share_among_sharded(modules: list[Any]) -> None:
    """Leave out what is not sharded."""
    right.share_comm_ctx([module for module in modules if isinstance(module, right.module_class)])


def always_by_rows(module: Any, **options: Any) -> Any:
    """Cut along the first dim whatever was asked for."""
    options.pop("shard_placement_fn", None)
    return right.fully_shard(module, **options)


def counts_dims_from_the_front(module: Any, **options: Any) -> Any:
    """A placement is refused whose dim is counted from the end."""

    def from_the_front(parameter: Any) -> Any:
        placement = choose(parameter)
        if placement.dim < 0:
            raise AssertionError(f"Shard dim {placement.dim} is invalid")
        return placement

    if choose := options.get("shard_placement_fn"):
        options["shard_placement_fn"] = from_the_front
    return right.fully_shard(module, **options)


keeps_gradients_alone = mutant("passes/child-alone", when_alone(reduces_unless_alone))
ages_alone = mutant("passes/child-tried", when_alone(stays_full_alone))
halves_second_calls = mutant("passes/module-twice", second_call_is_halved(lambda module: not is_root(module)))
halves_second_forwards = mutant("passes/two-forwards", second_call_is_halved(is_root))
checkpoints_once = replace(right, name=name_of("passes/two-forwards-checkpointed"), checkpoint=checkpoint_once)
makes_gradients_anew = mutant("passes/same-gradients", each_gradient(made_anew))
forgets_the_first_backward = mutant("passes/second-backward", each_gradient(of_the_last_alone))
needs_inputs = mutant("passes/no-inputs", looks_at_first_input)
counts_who_has_gradients = mutant("passes/ragged", reducing(counts_ranks_with_gradients))
has_no_backward_in_eval_mode = mutant("passes/eval-mode", outputs(cut_in_eval_mode, lambda module: not is_root(module)))
cuts_off_what_comes_first = mutant("passes/roots", begins_the_graph)
knows_one_backward = mutant("passes/adversaries", outputs(forgets_forwards))
stale_when_ahead = mutant("passes/prefetch", instead("set_modules_to_forward_prefetch", stale_ahead))
repeats_first_gradients = mutant("passes/optimizers", each_gradient(first_again))
knows_forward_only = replace(
    right, name=name_of("passes/forward-methods"), register_forward_method=lambda module, name: None
)
registers_everywhere = replace(
    right, name=name_of("passes/forward-methods-elsewhere"), register_forward_method=set_whatever
)
registers_quietly = replace(
    right, name=name_of("passes/forward-methods-unknown"), register_forward_method=register_if_there
)
one_root_reduces = replace(right, name=name_of("passes/shared-context"), share_comm_ctx=one_reduces_for_all)
shares_quietly = replace(right, name=name_of("passes/shared-context-refused"), share_comm_ctx=share_among_sharded)
cuts_rows_only = called_otherwise("passes/last-dim", always_by_rows)
refuses_negative_dims = called_otherwise("passes/last-dim", counts_dims_from_the_front)

#: Without gathering, without its input, or without its placement, a pass cannot run.
RAISES = ("needs_inputs", "knows_forward_only", "refuses_negative_dims")
