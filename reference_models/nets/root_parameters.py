"""Parameters that belong to no layer: a vector before the layer, another after it, and a single number.

Sharding the layer separately leaves these three to the module that owns them; the number lies on rank 0 alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RootParameters(nn.Module):
    """``temperature · layer(scale · x) + shift``."""

    def __init__(self, dim: int = 5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(dim))
        self.layer = nn.Linear(dim, dim)
        self.shift = nn.Parameter(torch.empty(dim))
        self.temperature = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        y: Tensor = self.temperature * self.layer(self.scale * x) + self.shift
        return y

    def reset_parameters(self) -> None:
        """Fill the direct parameters; the layer fills its own."""
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.shift)
        nn.init.ones_(self.temperature)
