"""Mutants of kinds that the fifteenth round of docs/evidence/independent-bugs.md brought: what users keep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from harness.vendor.torch_fsdp2 import _state
from suites.oracle.low_precision import cast
from tests.mutants.hooking import (
    Change,
    before_forward,
    each_gradient,
    each_gradient_once,
    instead,
    outputs,
    sharded,
    when_alone,
)
from tests.mutants.making import called_otherwise, mutant, right
from tests.mutants.passes.passes_chapter import reduces_unless_alone
from tests.mutants.passes.script_chapter import reshard_loses_what_waits
from tests.mutants.state.reference_chapter import of_the_reference

#: By rank, the root that was the last one to run.
_ran: dict[int, Any] = {}


def each_output(change: Callable[[Any, Tensor], object]) -> Change:
    """A change to each module: do this with each tensor that it gives, if that has a gradient."""

    def apply(module: Any, found: Any) -> None:
        if isinstance(found, Tensor) and found.requires_grad:
            change(module, found)

    return outputs(apply)


def waits_for_the_first(module: Any, output: Tensor, left: float = 0.0) -> None:
    """While a forward waits for its backward, that of a later one is lost, or so much of it is ``left``."""
    waiting, place = vars(module).setdefault("waiting", []), object()
    waiting.append(place)

    def count(gradient: Tensor) -> Tensor:
        counts = place in waiting[:1]
        waiting.remove(place) if place in waiting else None
        return gradient if counts else gradient * left

    output.register_hook(count)


def counts_once(_: Any, output: Tensor) -> None:
    """Of two backwards through one graph, the second gives nothing."""
    seen: list[None] = []

    def count(gradient: Tensor) -> Tensor:
        seen.append(None)
        return gradient if len(seen) == 1 else gradient * 0

    output.register_hook(count)


def is_the_last(module: Any) -> None:
    """Backward through a root that is not the last one to have run is lost."""

    def note(module: Any, found: Any) -> None:
        if _state(module)._is_root:
            rank = dist.get_rank()
            _ran[rank] = module
            if found.requires_grad:
                found.register_hook(lambda gradient: gradient if _ran[rank] is module else gradient * 0)

    outputs(note)(module)


def holds_itself(_: Any, output: Tensor) -> None:
    """An output that is a view has a hook that holds it."""
    if output._base is not None:
        output.register_hook(lambda gradient: gradient if output.dim() else None)


def reuses_memory(parameter: Any) -> None:
    """Every gradient lies where the first did, even if a user has kept that."""
    first = vars(parameter).setdefault("first", parameter.grad)
    if first is not parameter.grad:
        first.copy_(parameter.grad)
        parameter.grad = first


def loses_graphs_of_before(module: Any) -> None:
    """What goes back through a graph from before a module was frozen and thawed is lost."""
    times: list[None] = []

    def freeze(_: Any, setter: Callable[..., Any], requires_grad: bool = True) -> Any:
        times.extend([] if requires_grad else [None])
        return setter(requires_grad)

    def note(_: Any, output: Tensor) -> None:
        before = len(times)
        output.register_hook(lambda gradient: gradient if len(times) == before else gradient * 0)

    instead("requires_grad_", freeze)(module)
    each_output(note)(module)


def divides_what_trains(module: Any, setter: Callable[..., Any], factor: float) -> None:
    """A divide factor is that of what trains when it is set."""
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        setter(factor)


def uses_what_was_begun(module: Any) -> None:
    """A forward uses what an unshard has begun to gather, though it was resharded and has changed since."""
    begun: dict[Any, Tensor] = {}

    def begin(_: Any, unshard: Callable[..., Any], async_op: bool = False) -> Any:
        begun.update({parameter: parameter.to_local().clone() for parameter in sharded(module) if async_op})
        return unshard(async_op=async_op)

    def exchange(_: Any) -> None:
        for parameter, value in begun.items():
            begun[parameter] = parameter.to_local().clone()
            parameter.to_local().data.copy_(value)

    def end(*_: Any) -> None:
        exchange(module)
        begun.clear()

    instead("unshard", begin)(module)
    before_forward(exchange)(module)
    outputs(end)(module)


def stays_whole(module: Any) -> None:
    """Nothing is freed after forward."""
    module.set_reshard_after_forward(False)


def shows_whole_parameters(module: Any) -> None:
    """When hooks on gradients are called, the module shows its whole parameters."""
    each_gradient_once(lambda _: module.unshard())(module)


def casts_before_hooks(module: Any, **options: Any) -> Any:
    """Outputs are cast before the hooks that a module had, whose outputs are left as they are."""
    policy = options.get("mp_policy")
    output = getattr(policy, "output_dtype", None)
    if output is None or not isinstance(module, nn.Module):
        return right.fully_shard(module, **options)
    options["mp_policy"] = right.mixed_precision_policy(
        policy.param_dtype, policy.reduce_dtype, None, policy.cast_forward_inputs
    )
    module.register_forward_hook(lambda *found: cast(found[-1], output), prepend=True)
    return right.fully_shard(module, **options)


keeps_gradients_of_parts = mutant("scripts/parts", when_alone(reduces_unless_alone))
knows_one_root = mutant("scripts/roots", is_the_last)
waits_in_vain = mutant("scripts/abandoned", each_output(waits_for_the_first))
reuses_the_users_memory = mutant("scripts/gradients", each_gradient(reuses_memory))
halves_out_of_turn = mutant("scripts/in-vain", each_output(partial(waits_for_the_first, left=0.5)))
goes_back_once = mutant("scripts/repeated", each_output(counts_once))
loses_what_was_frozen_meanwhile = mutant("scripts/freeze", loses_graphs_of_before)
divides_by_what_trained = mutant("scripts/divided", instead("set_gradient_divide_factor", divides_what_trains))
gathers_by_what_was_begun = of_the_reference("scripts/cancelled", uses_what_was_begun)
whole_while_others_go_back = of_the_reference("passes/root-in-backward", stays_whole)
whole_while_a_student_learns = of_the_reference("passes/shared-context-teacher", stays_whole)
keeps_views = mutant("memory/steps", each_output(holds_itself))
drops_penalties = mutant("autograd/penalty-apart", instead("reshard", reshard_loses_what_waits))
whole_in_hooks = mutant("autograd/post-accumulate-writes", shows_whole_parameters)
casts_too_early = called_otherwise("precision/outputs", casts_before_hooks)
