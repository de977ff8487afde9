"""One weight at both ends: tokens are embedded by it, and predicted by it.

``tokens.weight`` and ``head.weight`` are one parameter with one name, one shard and one gradient: the sum of both uses.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """Tokens to logits by way of one layer."""

    def __init__(self, vocabulary: int = 7, dim: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.body = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, length)`` of int64 to ``(batch, length, vocabulary)``."""
        logits: Tensor = self.head(torch.tanh(self.body(self.tokens(tokens))))
        return logits
