"""Routes of nets that are differentiated in other ways: by functions with a backward of their own, along a direction.

A layer that runs ``x · w`` and adds ``g · x`` to ``w.grad`` itself, as fused kernels do, gives autograd none for ``w``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from suites.passes.autograd_routes import ALONE
from suites.passes.passes import Blocks, Found, Pass, Route


class _AddsItself(torch.autograd.Function):
    """``x @ weight.T``, whose backward adds to the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        own = gradient.T @ x
        weight.grad = own if weight.grad is None else weight.grad.add_(own)
        return gradient @ weight, None


class Fused(nn.Module):
    """A linear layer whose weight's gradient is added by such a function, and its bias's by autograd."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, dim)`` to the same."""
        found: Tensor = _AddsItself.apply(x, self.layer.weight)  # type: ignore[no-untyped-call]
        return found if self.layer.bias is None else found + self.layer.bias


class FusedBlocks(Blocks):
    """A net of such layers."""

    kind = Fused


def slopes(p: Pass) -> Found:
    """Train on the net's derivative in a direction, in even steps alone, in odd ones beside its value."""
    derive: Any = torch.func.jvp
    value, slope = derive(p.net, (p.inputs(),), (p.inputs(1),))
    loss = p.loss(slope) + (p.loss(value, 1) if p.batch % 2 else 0)
    loss.backward()
    yield {"loss": loss.detach()}


FUSED = Route(net=FusedBlocks)
SLOPES = Route(slopes, actions=ALONE)
