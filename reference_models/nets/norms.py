"""Norms over batches, groups and features, and buffers: persistent, not persistent, and written by forward.

``BatchNorm1d`` moves its running mean by a tenth of each batch's: 0 becomes 0.3 on a rank that sees a mean of 3. Ranks
see other batches, so their buffers differ from then on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Norms(nn.Module):
    """Batch, group and layer norm; then a persistent ``offset`` is added, and another multiplies."""

    def __init__(self, dim: int = 4, groups: int = 1) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(dim)
        self.group = nn.GroupNorm(groups, dim)
        self.layer = nn.LayerNorm(dim)
        self.offset: Tensor
        self.gain: Tensor
        self.register_buffer("offset", torch.empty(dim))
        self.register_buffer("gain", torch.empty(dim), persistent=False)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, dim)`` to the same; features are the channels of batch and group norm."""
        channels = self.group(self.batch(x.transpose(1, 2)))
        y: Tensor = self.layer(channels.transpose(1, 2)) * self.gain + self.offset
        return y

    def reset_parameters(self) -> None:
        """Fill the buffers with numbers that are the same everywhere; the norms fill their own."""
        with torch.no_grad():
            steps = torch.arange(self.offset.numel(), dtype=self.offset.dtype, device=self.offset.device)
            self.offset.copy_(steps / 8)
            self.gain.copy_(1 + steps / 8)
