"""A mark in the graph of a net: a callback runs when backward comes to it. Imports no ``torch.distributed``.

``y = mark(layer(x), note)`` calls ``note()`` when the gradient of ``y`` has come, after every hook on ``y``, and before
the layer computes its own gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Mark(torch.autograd.Function):
    """The identity, which calls back when its gradient comes: before the layer whose output it was has its own."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, note: Callable[[], None]) -> Tensor:
        """The same."""
        ctx.note = note
        return y.clone()  # a view would be warned of

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The same."""
        ctx.note()
        return gradient, None


def mark(y: Tensor, note: Callable[[], None]) -> Tensor:
    """The same numbers."""
    marked: Tensor = _Mark.apply(y, note)  # type: ignore[no-untyped-call]
    return marked
