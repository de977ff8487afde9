"""SGD on what a rank holds: of two ranks that share four weights, each steps its own two, and no DTensor is asked.

With a learning rate of 0.5, rank 1 of two::

    weights (sharded)  [1, 2 | 3, 4]     gradients (reduced)  [2, 2 | 4, 4]     rank 1: [3, 4] - 0.5 * [4, 4] = [1, 2]

For each new shape and layout DTensor works out anew how an operation is sharded, which takes milliseconds: as long as
all the rest of a small case. That sharded parameters train with torch's own optimizers is judged where it is the point:
in parity, composition, optimizer state and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from suites.oracle.layout import own


class OwnSGD(torch.optim.Optimizer):
    """Plain SGD, with the arithmetic of ``torch.optim.SGD``, on this rank's own part of every parameter."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Raises ValueError where a gradient is laid out otherwise than its parameter."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _check_layouts(parameter, parameter.grad)
                    own(parameter).add_(own(parameter.grad), alpha=-group["lr"])


def _check_layouts(parameter: Tensor, gradient: Tensor) -> None:
    layouts = [_layout(tensor) for tensor in (parameter, gradient)]
    if layouts[0] != layouts[1]:
        raise ValueError(f"expected a gradient laid out as its parameter, {layouts[0]}; got {layouts[1]}")


def _layout(tensor: Tensor) -> Any:
    placements = getattr(tensor, "placements", None)
    return "a plain tensor" if placements is None else (getattr(tensor, "device_mesh", None), placements)
