"""How a mutant implementation is made: torch's own ``fully_shard`` with one defect.

Defects go in by torch's public hooks, so everything else is known to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.vendor import Implementation
from harness.vendor.torch_fsdp2 import _groups, _state, implementation

#: torch's own implementation. Its functions are all there, which type checkers need not be told at each call.
right: Any = implementation


class Gather:
    """A right all-gather, to go wrong from; torch makes the calls."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Fill ``output_tensor``; at once, whatever ``async_op`` says, which torch allows by the answer None."""
        self.gather(output_tensor, input_tensor, group)

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        all_gather(output, input, group=group)


class Reduction:
    """A right reduce-scatter, to go wrong from."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Fill ``output_tensor``, at once."""
        self.reduce(output_tensor, input_tensor, group, op)

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        reduce_scatter(output, input, group=group, op=op)


class CountsRuns(Reduction):
    """Knows how often its module, the one that it is put ``on``, has run since it reduced last."""

    def __init__(self) -> None:
        self.runs = 0

    @classmethod
    def on(cls, module: Any) -> None:
        reduction = cls()
        module.set_custom_reduce_scatter(reduction)
        module.register_forward_pre_hook(lambda *_: setattr(reduction, "runs", reduction.runs + 1))

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        self.spoil(output)
        self.runs = 0

    def spoil(self, output: Tensor) -> None:
        raise NotImplementedError


def sharded_of(module: Any) -> list[Any]:
    """What a call has sharded: the module, or those of a list that lie within no other of it."""
    listed = [module] if isinstance(module, nn.Module) else list(module)
    return [each for each in listed if isinstance(each, right.module_class or object)]


def mutant(
    requirement: str,
    *,
    gather: Callable[[], Gather] | None = None,
    reduce: Callable[[], Reduction] | None = None,
    after: Callable[[Any], None] | None = None,
    **forced: Any,
) -> Implementation:
    """torch's implementation with another all-gather or reduce-scatter, a change to each module, or forced options.

    Its name is the ``requirement`` that must kill it.
    """

    def fully_shard(module: Any, **options: Any) -> Any:
        result = right.fully_shard(module, **{**options, **forced})
        for each in sharded_of(module):
            if gather:
                each.set_custom_all_gather(gather())
            if reduce:
                each.set_custom_reduce_scatter(reduce())
            if after:
                after(each)
        return result

    return replace(right, name=requirement, fully_shard=fully_shard)


def adopt(module: nn.Module, made: Mapping[Tensor, nn.Parameter]) -> None:
    """Have torch take what parameters were replaced by for its own, as it does anyway when the net first runs.

    What it does before, such as looking up names, it would do with the old ones: another defect than the one meant.
    """
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            for held in [held for group in _groups(_state(inner)) for held in group.fsdp_params]:
                held.sharded_param = made.get(held.sharded_param, held.sharded_param)
