"""Parts that do not train: a whole layer before the others, one after them, and a weight beside a bias that does.

Only ``adapter.bias`` and ``norm`` get gradients, which reach them through the frozen ``head``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Frozen(nn.Module):
    """A frozen backbone and head; between them an adapter, of which only the bias trains, and a norm, which does."""

    def __init__(self, dim: int = 5) -> None:
        super().__init__()
        self.backbone = nn.Linear(dim, dim).requires_grad_(False)
        self.adapter = nn.Linear(dim, dim)
        self.adapter.weight.requires_grad_(False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, dim).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        y: Tensor = self.head(self.norm(self.adapter(torch.tanh(self.backbone(x)))))
        return y
