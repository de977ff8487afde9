"""A rank's own part of a tensor: of a DTensor of eight rows over two ranks, four; of a plain tensor, all.

A DTensor is known by its method, so that this imports no ``torch.distributed``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def own(tensor: Tensor) -> Tensor:
    """The very memory."""
    to_local = getattr(tensor, "to_local", None)
    with torch.no_grad():
        part: Tensor = tensor if to_local is None else to_local()
    return part


def local(tensor: Tensor) -> Tensor:
    """A copy."""
    return own(tensor).detach().clone()
