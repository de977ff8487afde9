"""Mutants of kinds that the twelfth round of docs/evidence/independent-bugs.md brought: a sentence that is misread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.vendor.torch_fsdp2 import _groups, _state
from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.hooking import instead
from tests.mutants.making import called_otherwise, mutant, reduced, reducing, right
from tests.mutants.passes.communication import without
from tests.mutants.passes.passes_chapter import one_reduces_for_all, stale_ahead
from tests.mutants.state.optimizer_state import with_states
from tests.mutants.state.reference_chapter import of_the_reference


def is_for_forward_alone(module: Any, set_unneeded: Callable[[bool], None], value: bool) -> None:
    """What backward does not need is gathered by forward, and by no user."""
    set_unneeded(value)
    if not value:
        module.unshard = lambda *_, **__: None


def of_all_below(module: Any, set_zeros: Callable[..., None], value: bool, *, recurse: bool = True) -> None:
    """Zeros for what is not used are of all modules, whatever was asked for."""
    set_zeros(value)


def of_the_first_mesh(module: Any, set_factor: Callable[[float], None], factor: float) -> None:
    """The factor divides what is reduced over the first mesh."""
    groups = _groups(_state(module))
    before = [group.gradient_divide_factor for group in groups]
    set_factor(factor)
    for group, value in list(zip(groups, before, strict=True))[1:]:
        group.gradient_divide_factor = value


def of_the_root_alone(module: Any, *, ignored_params: Any = None, **options: Any) -> Any:
    """Only the call on a net as a whole ignores parameters."""
    is_net = isinstance(module, torch.nn.Sequential)
    return right.fully_shard(module, ignored_params=ignored_params if is_net else None, **options)


def without_the_frozen(module: Any, state: dict[str, Any], *, options: Any = None) -> Any:
    """By options that leave frozen parameters out, none is loaded."""
    if options is not None and options.ignore_frozen_params:
        own = right.state_dicts.get_model_state_dict(module, options=replace(options, ignore_frozen_params=False))
        frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        state = {name: own[name] if name in frozen else value for name, value in state.items()}
    return right.state_dicts.set_model_state_dict(module, state, options=options)


def waits_for_replicas(module: Any, set_all_reduce: Callable[..., None], value: bool, **options: Any) -> None:
    """Without all-reduces nothing is reduced."""
    set_all_reduce(value, **options)
    module.set_requires_gradient_sync(value, **options)


def divides_after_sums(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """A sum is divided once it is there."""
    ranks = group.size() if op == dist.ReduceOp.SUM else 1
    reduced(output, input * ranks, group, op)
    output /= ranks


def with_hooks(module: Any, name: str) -> None:
    """A registered method is run with users' hooks, as forward is."""
    right.register_forward_method(module, name)
    method = getattr(module, name, None)

    def run(*args: Any, **options: Any) -> Any:
        found = method(*args, **options)  # type: ignore[misc]
        for hook in of_users(module._forward_hooks.values()):
            hook(module, args, found)
        return found

    if method is not None:
        setattr(module, name, run)


def of_users(hooks: Iterable[Any]) -> list[Any]:
    """The hooks that torch has not registered."""
    return [hook for hook in hooks if not (getattr(hook, "__module__", None) or "torch").startswith("torch")]


ends_each_backward = without("prefetch/backward-in-flight", "set_is_last_backward")
unshards_no_unneeded = mutant("reshard/unshard-unneeded", instead("set_unshard_in_backward", is_for_forward_alone))
zeros_everywhere = mutant("passes/unused-in-root", instead("set_reduce_scatter_unused_params", of_all_below))
divides_on_one_mesh = mutant("parameter-mesh/divide-factor", instead("set_gradient_divide_factor", of_the_first_mesh))
ignores_in_the_root = called_otherwise("parameters/ignored-once", of_the_root_alone)
loads_nothing_frozen = with_states("optimizer-state/frozen-given", set_model_state_dict=without_the_frozen)
waits_where_nothing_does = mutant("accumulation/no-replicas", instead("set_requires_all_reduce", waits_for_replicas))
overflows_in_sums = mutant("reduction/half-range-forced", reducing(divides_after_sums))
runs_hooks_around_all = replace(right, name=name_of("passes/forward-methods-hooks"), register_forward_method=with_hooks)
ages_what_it_does_not_run = of_the_reference(
    "passes/prefetch-unused", instead("set_modules_to_forward_prefetch", stale_ahead)
)
one_stage_reduces = replace(reference, name=name_of("passes/shared-context-stages"), share_comm_ctx=one_reduces_for_all)
