"""Branches of which an input says which one runs: the others have no gradient, and other ranks may take another.

With two branches, rank 0 on the first and rank 1 on the second, each branch's gradient is half of the one rank's that
ran it.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn


class Branches(nn.Module):
    """Modules that map ``dim`` to ``dim``; one runs at a time, around a residual."""

    def __init__(self, branches: Iterable[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor, which: int) -> Tensor:
        """``(…, dim)`` to the same, by branch ``which``, counted around."""
        y: Tensor = x + self.branches[which % len(self.branches)](x)
        return y
