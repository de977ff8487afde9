"""Small nets of which something may be refused.

A layer with a weight of ``[[1, 2], [3, 4]]`` and a scale of 2, which has no dims and so no rows to cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from suites.setup.entry_nets import InARow, linear


class Within(InARow):
    """Modules that run one after the other, in a container that has no forward."""

    def __init__(self, container: Any) -> None:
        super().__init__()
        self.layers = container

    def forward(self, x: Tensor) -> Any:
        """``(…, 2)`` to the same."""
        for layer in self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers:
            x = layer(x)
        return x


class Scaled(nn.Linear):
    """A layer that has a parameter without dims."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))
        nn.init.ones_(self.weight)
        nn.init.ones_(self.bias)

    def forward(self, x: Tensor) -> Any:
        """``(…, 2)`` to the same."""
        return super().forward(x) * self.scale


class TiedTwice(nn.Sequential):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__(linear(2, 2), linear(2, 2))
        self[1].weight = self[0].weight


class TwoDtypes(nn.Module):
    """A float32 layer, and a float64 one whose weights float32 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = linear(2, 2), linear(2, 2).double()
        with torch.no_grad():
            self.other.weight += 2.0**-40

    def forward(self, x: Tensor) -> Any:
        """The sum of both, also if both have come to one dtype: then the numbers show it."""
        return self.one(x) + self.other(x.to(self.other.weight.dtype))


def with_bias() -> nn.Linear:
    """A layer with a bias of ones."""
    layer = linear(2, 2, bias=True)
    nn.init.ones_(layer.bias)
    return layer


def then_transposed() -> nn.Module:
    """Two layers, of which the second one's weight is not contiguous."""
    first, second = linear(3, 2), linear(2, 3)
    second.weight = nn.Parameter(second.weight.detach().t().contiguous().t())
    return nn.Sequential(first, second)


def in_a_row() -> nn.Module:
    """Two layers, of which the second takes what the first gives."""
    return nn.Sequential(linear(3, 2), linear(2, 3))
