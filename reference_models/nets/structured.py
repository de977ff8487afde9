"""Tensors within dicts, tuples and dataclasses, going in and coming out; not all of them have gradients.

``{"left": x, "rest": (y, 2)}`` comes out as ``Outputs(main=…, parts={"left": (…,), "rest": [y]})``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Outputs:
    """What comes out: one bare tensor, and more by name."""

    main: Tensor
    parts: dict[str, Any]


class Structured(nn.Module):
    """Two layers whose inputs and outputs are taken out of, and put into, structures."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.left = nn.Linear(dim, dim)
        self.right = nn.Linear(dim, dim)

    def forward(self, batch: dict[str, Any]) -> Outputs:
        """``left`` and ``rest[0]`` are ``(…, dim)``; ``rest[1]`` is a plain number."""
        other, factor = batch["rest"]
        left = torch.tanh(self.left(batch["left"]))
        right = self.right(other) * factor
        return Outputs(main=left + right, parts={"left": (left,), "rest": [other]})
