"""Implementations that divide by something else, average where sums were asked for, or call hooks at the wrong time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.mutants.hooking import each_gradient
from tests.mutants.making import defect, mutant, reduced, reduced_then, reducing, right, summed
from tests.mutants.passes.communication import without
from tests.mutants.passes.prefetch_chapter import sharded_below


def divides_all_below(module: Any, factor: float) -> None:
    """For the whole tree."""
    for each in (module, *sharded_below(module)):
        type(each).set_gradient_divide_factor(each, factor)


def divides_without_replicas(module: Any, factor: float) -> None:
    """As if one replica's sum were all."""
    type(module).set_gradient_divide_factor(module, factor / replicas_of(module))


def replicas_of(module: Any) -> int:
    """How many replicas there are."""
    meshes = [getattr(parameter, "device_mesh", None) for parameter in module.parameters()]
    return next((mesh.size(0) for mesh in meshes if mesh is not None and mesh.ndim == 2), 1)


def divides_low_precision_twice(module: Any, factor: float) -> None:
    """Once more, where gradients were computed in low precision."""
    low = any(group.mp_policy.param_dtype for group in groups_of(module))
    type(module).set_gradient_divide_factor(module, factor * factor if low else factor)


def groups_of(module: Any) -> list[Any]:
    """torch's own groups of parameters."""
    return list(right.fully_shard.state(module)._fsdp_param_groups)  # type: ignore[union-attr]


def takes_it_for_the_default(module: Any, factor: float) -> None:
    """A factor that equals the number of shards means: divide by all ranks."""
    shards = [group._all_gather_process_group.size() for group in groups_of(module)]
    type(module).set_gradient_divide_factor(module, None if factor in shards else factor)


def averages_anyway(module: Any, enable: bool) -> None:
    """Nothing changes."""


def adds_replicas_without_dividing(module: Any, enable: bool) -> None:
    """On replicas, sums over shards are divided by the shards alone."""
    type(module).set_force_sum_reduction_for_comms(module, enable)
    if replicas_of(module) > 1:
        type(module).set_gradient_divide_factor(module, float(module_ranks(module) / replicas_of(module)))


def sums_again(parameter: Any) -> None:
    """A gradient is divided after it has been the sum over ranks in its own dtype."""
    ranks = parameter.device_mesh.size()
    parameter.grad.to_local().mul_(ranks).div_(ranks)


def divides_last(module: Any, enable: bool) -> None:
    """Forced sums are divided once they are in the parameters' dtype."""
    type(module).set_force_sum_reduction_for_comms(module, enable)
    each_gradient(sums_again)(module)


def module_ranks(module: Any) -> int:
    """How many ranks there are."""
    return max(parameter.device_mesh.size() for parameter in module.parameters())


def halves_alone(module: Any) -> None:
    """On one rank, divides by two."""
    if module_ranks(module) == 1:
        module.set_gradient_divide_factor(2.0)


def copies_for_the_hook(module: Any, hook: Any, *, stream: Any = None) -> None:
    """The hook is given a copy."""
    type(module).set_all_reduce_hook(module, lambda part: hook(part.clone()))


def converts_for_the_hook(module: Any, hook: Any, *, stream: Any = None) -> None:
    """The hook is given what is reduced in the dtype of parameters, a copy where that is another."""
    dtype = next(module.parameters()).dtype
    type(module).set_all_reduce_hook(module, lambda part: hook(part.to(dtype)))


def before_replicas(module: Any, hook: Any, *, stream: Any = None) -> None:
    """The hook comes before the all-reduce."""

    if replicas_of(module) > 1 and any(group._all_gather_process_group.size() > 1 for group in groups_of(module)):
        reduced_then(lambda output, group: hook(output))(module)
    else:
        type(module).set_all_reduce_hook(module, hook)


def not_in_streams(module: Any, hook: Any, *, stream: Any = None) -> None:
    """A hook that has a stream is not called."""
    if stream is None:
        type(module).set_all_reduce_hook(module, hook)


def takes_any_stream(module: Any, hook: Any, *, stream: Any = None) -> None:
    """The stream is ignored."""
    type(module).set_all_reduce_hook(module, hook)


def set_by_the_old_name(module: nn.Module, factor: float) -> None:
    """Without a word."""
    module.set_gradient_divide_factor(factor)  # type: ignore[operator]


FACTOR = "set_gradient_divide_factor"
SUMS = "set_force_sum_reduction_for_comms"
HOOK = "set_all_reduce_hook"

divides_the_tree = without("reduction/divide-factor", FACTOR, divides_all_below)
forgets_replicas = without("reduction/divide-factor-hsdp", FACTOR, divides_without_replicas)
divides_low_twice = without("reduction/divide-factor-low", FACTOR, divides_low_precision_twice)
mistakes_the_shards = without("reduction/own-size", FACTOR, takes_it_for_the_default)
says_nothing = without("reduction/old-name", "set_reduce_scatter_divide_factor", set_by_the_old_name)
averages = without("reduction/sums", SUMS, averages_anyway)
adds_replicas = without("reduction/sums-hsdp", SUMS, adds_replicas_without_dividing)
divides_sums_last = without("reduction/half-range-sums", SUMS, divides_last)
divides_replicas_last = mutant(
    "reduction/half-range-hsdp", lambda module: replicas_of(module) > 1 and each_gradient(sums_again)(module)
)
halves_one_rank = mutant("reduction/one-rank", halves_alone)


@defect("reduction/half-range", reducing)
def overflows(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """Adds in half precision without dividing before."""
    if input.dtype != torch.float16:
        reduced(output, input, group, op)
        return
    summed(output, input * group.size(), group, op)
    output /= group.size()


hooks_a_copy = without("reduction/hook", HOOK, copies_for_the_hook)
hooks_what_is_converted = without("reduction/hook-precision", HOOK, converts_for_the_hook)
hooks_too_early = without("reduction/hook-hsdp", HOOK, before_replicas)
hooks_in_no_stream = without("reduction/hook-stream", HOOK, not_in_streams)
has_no_hooks = without("reduction/replicas-by-hook", HOOK)
ignores_streams = without("reduction/refuses-streams", HOOK, takes_any_stream)
