"""A module that is called twice in one forward, the second time on what the first gave.

For a weight w without bias that is w·w·x, so the gradient has two parts; the second forward must find the weights again
if they were resharded after the first.
"""

from __future__ import annotations

from torch import Tensor, nn


class Twice(nn.Module):
    """Applies ``module`` to its own output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        y: Tensor = self.module(self.module(x))
        return y
