"""Parameters of three dtypes: layers that train in float32 and float64, and a frozen table in float16.

What trains in one group must be of one dtype, so ``wide`` is sharded separately; the frozen table may be in any group.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MixedDtypes(nn.Module):
    """``narrow`` in float32, then ``wide`` in float64, then the ``table`` is added; comes out in float32."""

    def __init__(self, dim: int = 5) -> None:
        super().__init__()
        self.narrow = nn.Linear(dim, dim, dtype=torch.float32)
        self.wide = nn.Linear(dim, dim, dtype=torch.float64)
        self.table = nn.Parameter(torch.empty(dim, dtype=torch.float16), requires_grad=False)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        hidden = torch.tanh(self.narrow(x))
        y: Tensor = self.wide(hidden.to(self.wide.weight.dtype)).to(hidden.dtype) + self.table.to(hidden.dtype)
        return y

    def reset_parameters(self) -> None:
        """Fill the table; the layers fill their own parameters."""
        nn.init.ones_(self.table)
