"""Linear layers whose rows no usual number of ranks divides, down to a single row.

Rows of 7, 1 and 5 on four ranks, where some ranks hold nothing at all::

    7: 2, 2, 2, 1        1: 1, 0, 0, 0        5: 2, 2, 1, 0
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class Uneven(nn.Module):
    """``dim → widths → dim``, with tanh after every layer."""

    def __init__(self, dim: int = 5, widths: tuple[int, ...] = (7, 1), bias: bool = True) -> None:
        super().__init__()
        sizes = (dim, *widths, dim)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x
