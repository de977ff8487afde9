"""Implementations that gather in another way than torch; right is to have all rows there when they are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch as tensors
import torch.distributed as dist
from torch import Tensor

from harness.collective_trace.torch_names import all_gather
from tests.conforming.making import Gather, Reduction, reference, torch, variant
from tests.conforming.noticing import noticed


class Landing(dist._Work):
    """The handle of a gather whose rows come to their place only when they are waited for."""

    def __init__(self, work: Any, landed: Tensor, output: Tensor) -> None:
        super().__init__()
        self._work, self._landed, self._output = work, landed, output

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait, and move the rows."""
        self._work.wait()
        self._output.copy_(self._landed)
        noticed("gathers into scratch")
        return True


class GathersIntoScratch(Gather):
    """Sends a copy, and gathers into memory of its own. Right: no rank may read before it has waited."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """A handle of its own if one is asked for."""
        landed = tensors.empty_like(output_tensor)
        landing = Landing(all_gather(landed, input_tensor.clone(), group=group, async_op=True), landed, output_tensor)
        return landing if async_op else (landing.wait(), None)[1]


class GathersAtOnce(Gather):
    """Is done when the call returns, whatever was asked, and has no handle. Right: None says so."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        noticed("gathers at once")
        super().gather(output, input, group)


def poisoned(size: Sequence[int], dtype: tensors.dtype, device: tensors.device) -> Tensor:
    """Memory full of NaN, or of a number that no parameter has."""
    noticed("fills with NaN")
    return tensors.full(tuple(size), float("nan") if dtype.is_floating_point else 113, dtype=dtype, device=device)


class GathersIntoNan(Gather):
    """Allocates memory that is full of NaN. Right: memory holds anything before it is written."""

    def allocate(self, size: Sequence[int], *, dtype: tensors.dtype, device: tensors.device) -> Tensor:
        return poisoned(size, dtype, device)


class ReducesIntoNan(Reduction):
    """The same for both buffers of a reduction."""

    def allocate(self, size: Sequence[int], *, dtype: tensors.dtype, device: tensors.device) -> Tensor:
        return poisoned(size, dtype, device)


def waits_late(module: Any, options: Any) -> None:
    """Gathers asynchronously throughout, and waits where parameters are used. Right: that is when they are needed."""
    noticed("waits late")
    module._set_unshard_async_op(True)


class _There:
    """The handle of what is there already."""

    def wait(self) -> None:
        """Nothing is left to do."""


def unshards_eagerly(module: Any, options: Any) -> None:
    """``unshard(async_op=True)`` has unsharded when it returns. Right: waiting says when it must have."""
    unshard = module.unshard

    def at_once(async_op: bool = False) -> _There | None:
        noticed("unshards at once")
        unshard()
        return _There() if async_op else None

    module.unshard = at_once


gathers_into_scratch = variant("gathers into scratch", reference, gather=GathersIntoScratch)
gathers_at_once = variant("gathers at once", reference, gather=GathersAtOnce)
fills_with_nan = variant("fills with NaN", torch, gather=GathersIntoNan, reduce=ReducesIntoNan)
gathers_asynchronously = variant("waits late", torch, after=waits_late)
unshards_at_once = variant("unshards at once", torch, after=unshards_eagerly)
