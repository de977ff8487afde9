"""Collectives of the user's own: right ones, by torch's calls, that count how often they are called.

Asked to gather ``[1 2]`` of rank 0 and ``[3 4]`` of rank 1, an ``OwnGather`` fills the four numbers that it allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.collective_trace.torch_names import all_gather, reduce_scatter


class Counting:
    """A hook that counts its calls."""

    calls = 0

    def __call__(self, *_: Any) -> Any:
        """Count."""
        self.calls += 1


class _Own(Counting):
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Ordinary memory."""
        return torch.empty(*size, dtype=dtype, device=device)

    def run(self, collective: Callable[..., Any], tensors: tuple[Tensor, ...], group: Any, is_async: bool) -> Any:
        """One call, of an output and an input."""
        super().__call__()
        return collective(*tensors, group=group, async_op=is_async)


class OwnGather(_Own):
    """An all-gather."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather."""
        return self.run(all_gather, (output_tensor, input_tensor), group, async_op)


class OwnReduction(_Own):
    """A reduce-scatter."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Reduce and scatter."""
        return self.run(partial(reduce_scatter, op=op), (output_tensor, input_tensor), group, async_op)
