"""Two linear layers with a ReLU between: the smallest net with two parameter shapes, optionally with a buffer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """``dim → multiplier·dim → dim``. With ``buffer`` a ``(dim,)`` buffer is added to the output."""

    def __init__(self, dim: int, multiplier: int = 4, buffer: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.in_proj = nn.Linear(dim, multiplier * dim, bias=bias)
        self.out_proj = nn.Linear(multiplier * dim, dim, bias=bias)
        self.buffer: Tensor | None
        self.register_buffer("buffer", torch.randn(dim) if buffer else None)

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to ``(…, dim)``."""
        y: Tensor = self.out_proj(torch.relu(self.in_proj(x)))
        return y if self.buffer is None else y + self.buffer

    def reset_parameters(self) -> None:
        """Fill the buffer; the layers fill their own parameters."""
        if self.buffer is not None:
            nn.init.normal_(self.buffer)
