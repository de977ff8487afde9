"""Tables of which a batch names some rows only: all others have a gradient of zeros.

Of seven rows, tokens 2, 0, 2 give row 2 the gradient of both its uses, row 0 none, since it stands for padding, and the
other five none, since they were not looked up.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """The sum of a token's row and its position's."""

    def __init__(self, vocabulary: int = 7, length: int = 5, dim: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.positions = nn.Embedding(length, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, length)`` of int64 to ``(batch, length, dim)``."""
        places = torch.arange(tokens.size(1), device=tokens.device)
        rows: Tensor = self.tokens(tokens) + self.positions(places)
        return rows
