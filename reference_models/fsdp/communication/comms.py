"""What may stand in for the collectives, and where the tensors they communicate lie in memory.

A gather of two ranks' [1 2] and [3 4] asks ``allocate`` for four numbers, writes its own two into them, and calls::

    all_gather(output=[1 2 . .], input=output[0:2], group)      output is [1 2 3 4] once the work is waited for
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import Tensor

#: The two collectives that torch renamed in 2.13, under their new names on any torch from 2.11 on.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class AllGather(Protocol):
    """What a user may put in place of the all-gather; ``allocate`` makes its output."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor to gather into."""
        ...

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather; the input is a part of the output."""
        ...


class ReduceScatter(Protocol):
    """What a user may put in place of the reduce-scatter."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor to reduce from or into."""
        ...

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Reduce and scatter."""
        ...


class _Plain:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class FromGroup:
    """Allocates from the process group's own memory where it has some, else ordinary memory."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor to communicate from or into."""
        backend = self._group._get_backend(device)
        if not backend.supports_tensor_alloc(device):
            return torch.empty(*size, dtype=dtype, device=device)
        made: Tensor = backend.allocate_tensor(prod(size), dtype=dtype, device=device)
        return made.view(*size)


class PlainAllGather(_Plain):
    """torch's own all-gather into ordinary memory."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather."""
        return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class PlainReduceScatter(_Plain):
    """torch's own reduce-scatter from and into ordinary memory."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Reduce and scatter."""
        return reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


def returns_early(comm: AllGather | ReduceScatter) -> bool:
    """Whether a collective may be asked to return before its result is there.

    torch's own may: the result is waited for before it is used. A user's may look at its result, which is then there.
    """
    return isinstance(comm, (PlainAllGather, PlainReduceScatter))


def under_way(answer: Any) -> dist.Work | None:
    """What is left to wait for, of what a collective answered: users' may answer anything."""
    return answer if isinstance(answer, dist.Work) else None


class AllGatherFromGroup(FromGroup, PlainAllGather):
    """torch's own all-gather into the group's memory."""


class ReduceScatterFromGroup(FromGroup, PlainReduceScatter):
    """torch's own reduce-scatter from and into the group's memory."""


class FromSymmetricMemory:
    """Allocates from symmetric memory, which the ranks of a group can reach directly. ``backend`` is that memory's."""

    def __init__(self, backend: Any) -> None:
        symmetric_memory.set_backend(backend)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor to communicate from or into."""
        with torch.cuda.use_mem_pool(symmetric_memory.get_mem_pool(device)):
            return torch.empty(*size, dtype=dtype, device=device)


class AllGatherFromSymmetricMemory(FromSymmetricMemory, PlainAllGather):
    """torch's own all-gather into symmetric memory."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Let the group know the memory, and gather."""
        symmetric_memory.rendezvous(output_tensor, group=group.group_name)
        return super().__call__(output_tensor, input_tensor, group, async_op)


class ReduceScatterFromSymmetricMemory(FromSymmetricMemory, PlainReduceScatter):
    """torch's own reduce-scatter from and into symmetric memory."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Let the group know the memory, then reduce and scatter."""
        for tensor in (input_tensor, output_tensor):
            symmetric_memory.rendezvous(tensor, group=group.group_name)
        return super().__call__(output_tensor, input_tensor, group, op, async_op)
