"""How a mutant implementation is made: torch's own ``fully_shard`` with one defect.

Defects go in by torch's public hooks, so everything else is known to be right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.vendor import Implementation
from harness.vendor.torch_fsdp2 import _groups, _state, implementation
from tests.mutants import name_of

#: torch's own implementation. Its functions are all there, which type checkers need not be told at each call.
right: Any = implementation


Change = Callable[[Any], object]
FullyShard = Callable[..., Any]


# Another all-gather or reduce-scatter.


def gathered(output: Tensor, input: Tensor, group: Any) -> None:
    """The right all-gather."""
    all_gather(output, input, group=group)


def reduced(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """The right reduce-scatter."""
    reduce_scatter(output, input, group=group, op=op)


def summed(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """A sum for an average: of [1, 2] and [3, 6] two ranks get [4] and [8]."""
    reduce_scatter(output, input, group=group, op=dist.ReduceOp.SUM)


class Gather:
    """A right all-gather, to go wrong from; torch makes the calls."""

    gather = staticmethod(gathered)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Fill ``output_tensor``; at once, whatever ``async_op`` says, which torch allows by the answer None."""
        self.gather(output_tensor, input_tensor, group)


class Reduction:
    """A right reduce-scatter, to go wrong from."""

    allocate = Gather.allocate
    reduce = staticmethod(reduced)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Fill ``output_tensor``, at once."""
        self.reduce(output_tensor, input_tensor, group, op)


def gathering(gather: Callable[..., object]) -> Change:
    """A change to each module: it gathers by ``gather(output, input, group)``."""

    def change(module: Any) -> None:
        wrong = Gather()
        wrong.gather = gather
        module.set_custom_all_gather(wrong)

    return change


def gathered_then(spoil: Callable[[Tensor, Any], object]) -> Change:
    """A change to each module: ``spoil(output, group)`` comes after each all-gather."""
    return gathering(lambda output, input, group: (gathered(output, input, group), spoil(output, group)))


def reducing(reduce: Callable[..., object]) -> Change:
    """A change to each module: it reduces by ``reduce(output, input, group, op)``."""

    def change(module: Any) -> None:
        wrong = Reduction()
        wrong.reduce = reduce
        module.set_custom_reduce_scatter(wrong)

    return change


def reduced_then(spoil: Callable[[Tensor, Any], object]) -> Change:
    """A change to each module: ``spoil(output, group)`` comes after each reduce-scatter."""
    return reducing(lambda output, input, group, op: (reduced(output, input, group, op), spoil(output, group)))


sums = reducing(summed)


def after_runs(spoil: Callable[[Tensor, int], object]) -> Change:
    """A change to each module: ``spoil(output, runs)`` comes after each reduction of so many runs."""

    def change(module: Any) -> None:
        runs: list[None] = []
        module.register_forward_pre_hook(lambda *_: runs.append(None))
        reduced_then(lambda output, group: (spoil(output, len(runs)), runs.clear()))(module)

    return change


# Mutants.


def modules_of(module: Any) -> list[Any]:
    """What a call was given, as a list."""
    return [module] if isinstance(module, nn.Module) else list(module)


def inside(module: Any) -> Iterator[nn.Module]:
    """All modules of what a call was given."""
    return (each for one in modules_of(module) for each in one.modules())


def unties(module: Any, options: dict[str, Any]) -> None:
    """Give every place a parameter of its own."""
    seen: list[Tensor] = []
    for each in inside(module):
        untie(each, seen)


def untie(module: nn.Module, seen: list[Tensor]) -> None:
    """Give a module its own parameter for each that was seen; it has then been seen."""
    for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
        if any(parameter is one for one in seen):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
        seen.append(parameter)


def mutant(
    requirement: str,
    after: Change | None = None,
    *,
    gather: Callable[[], Gather] | None = None,
    reduce: Callable[[], Reduction] | None = None,
    **forced: Any,
) -> Implementation:
    """torch's implementation with a change to each sharded module, another all-gather or reduce-scatter, or options.

    The ``requirement`` in its name must kill it.
    """

    def fully_shard(module: Any, **options: Any) -> Any:
        result = right.fully_shard(module, **{**options, **forced})
        for each in modules_of(module):
            if not isinstance(each, right.module_class):
                continue  # within another one of a list
            if gather:
                each.set_custom_all_gather(gather())
            if reduce:
                each.set_custom_reduce_scatter(reduce())
            if after:
                after(each)
        return result

    return replace(right, name=name_of(requirement), fully_shard=fully_shard)


def defect(requirement: str, *ways: Callable[[Any], Change]) -> Callable[[Any], Implementation]:
    """What this decorates becomes a mutant in which it is done to each module, in these ways, the last one innermost::

    @defect("registration/same-objects", each_gradient)
    def renews_objects(parameter): ...
    """
    return lambda change: mutant(requirement, functools.reduce(lambda inner, way: way(inner), reversed(ways), change))


def _or_decorator(make: Callable[..., Implementation]) -> Callable[..., Any]:
    """The same; and called with the requirement alone, a decorator."""

    @functools.wraps(make)
    def made(requirement: str, function: FullyShard | None = None, **options: Any) -> Any:
        return make(requirement, function, **options) if function else functools.partial(make, requirement, **options)

    return made


@_or_decorator
def called_otherwise(requirement: str, fully_shard: FullyShard, of: Any = right) -> Implementation:
    """torch's implementation, or another, with another ``fully_shard``."""
    return replace(of, name=name_of(requirement), fully_shard=fully_shard)


@_or_decorator
def changed(requirement: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Implementation:
    """torch's implementation with other options than it was asked for."""
    return called_otherwise(requirement, lambda module, **options: right.fully_shard(module, **change(options)))


@_or_decorator
def before(requirement: str, change: Callable[[Any, dict[str, Any]], object], of: Any = right) -> Implementation:
    """torch's implementation, or another, with ``change(module, options)`` before a module is sharded."""

    def fully_shard(module: Any, **options: Any) -> Any:
        change(module, options)
        return of.fully_shard(module, **options)

    return called_otherwise(requirement, fully_shard, of=of)


@_or_decorator
def given(requirement: str, change: Callable[[Any, dict[str, Any]], object], of: Any = right) -> Implementation:
    """torch's implementation, or another, with ``change(module, options)`` after a module was sharded so."""

    def fully_shard(module: Any, **options: Any) -> Any:
        result = of.fully_shard(module, **options)
        change(module, options)
        return result

    return called_otherwise(requirement, fully_shard, of=of)


def adopt(module: nn.Module, made: Mapping[Tensor, nn.Parameter]) -> None:
    """Have torch take what parameters were replaced by for its own, as it does anyway when the net first runs.

    What it does before, such as looking up names, it would do with the old ones: another defect than the one meant.
    """
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            for held in [held for group in _groups(_state(inner)) for held in group.fsdp_params]:
                held.sharded_param = made.get(held.sharded_param, held.sharded_param)
