"""Convolutions: weights of three dims, whose rows are output channels, or input channels where they are transposed.

With 4 features ``wide.weight`` is (8, 4, 3), ``narrow.weight`` also (8, 4, 3), ``depthwise.weight`` (4, 1, 3) and
``gate.weight`` (1, 4, 3): two ranks can cut all but the third along dim 1, and three ranks all along dim 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Convolution(nn.Module):
    """Along the length: wide, transposed back, each channel separately, and a gate for all; the length stays."""

    def __init__(self, dim: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.wide = nn.Conv1d(dim, 2 * dim, 3, padding=1, bias=bias)
        self.narrow = nn.ConvTranspose1d(2 * dim, dim, 3, padding=1, bias=bias)
        self.depthwise = nn.Conv1d(dim, dim, 3, padding=1, groups=dim, bias=bias)
        self.gate = nn.Conv1d(dim, 1, 3, padding=1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, dim)`` to the same; features are the channels."""
        channels = torch.tanh(self.wide(x.transpose(1, 2)))
        y: Tensor = torch.sigmoid(self.gate(x.transpose(1, 2))) * self.depthwise(torch.tanh(self.narrow(channels)))
        return y.transpose(1, 2)
