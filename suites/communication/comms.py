"""Collectives of the user's own, which note what they are asked for: right ones, by torch's own calls.

Asked to gather ``[1 2]`` of rank 0 and ``[3 4]`` of rank 1, an ``OwnGather`` fills the four numbers that it allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.collective_trace.torch_names import all_gather, reduce_scatter


class _Own:
    """Notes each call: by which group, and whether the tensors lie in memory that this object allocated."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.ranks: list[list[int]] = []
        self.placed: list[bool] = []
        self._memory: list[Tensor] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Ordinary memory, kept so that no other allocation can be mistaken for it."""
        self._memory.append(torch.empty(*size, dtype=dtype, device=device))
        return self._memory[-1]

    def note(self, group: dist.ProcessGroup, *tensors: Tensor) -> None:
        """One call."""
        own = {memory.untyped_storage().data_ptr() for memory in self._memory}
        self.groups.append(group.group_name)
        self.ranks.append(dist.get_process_group_ranks(group))
        self.placed.append(all(tensor.untyped_storage().data_ptr() in own for tensor in tensors))


class OwnGather(_Own):
    """An all-gather."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather."""
        self.note(group, output_tensor)
        return all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class OwnReduction(_Own):
    """A reduce-scatter."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Reduce and scatter."""
        self.note(group, output_tensor, input_tensor)
        return reduce_scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)
