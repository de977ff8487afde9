"""What happened on one rank, as data."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor


class Step(TypedDict):
    """One training step: the rank's loss, and its local gradients and (updated) parameters by name."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    parameters: dict[str, Tensor]


Trace = list[Step]
