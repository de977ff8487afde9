"""Layers of torch that use parameters in ways of their own.

``nn.RNN`` keeps them in a list, too, which it makes anew where others are registered. ``nn.MultiheadAttention`` uses
those of its layer ``out_proj``, whose forward it never calls.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent layer."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.recurrent = nn.RNN(dim, dim, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, dim)`` to the same."""
        y: Tensor = self.recurrent(x)[0]
        return y


class MultiHead(nn.Module):
    """Causal self-attention by torch's own layer."""

    def __init__(self, dim: int = 4, heads: int = 1) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, dim)`` to the same."""
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        y: Tensor = self.attention(x, x, x, attn_mask=later, need_weights=False)[0]
        return y
