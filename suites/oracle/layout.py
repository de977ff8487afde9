"""Which rank holds which rows: the arithmetic of sharding, without any process group.

Five rows on four ranks, in chunks of ceil(5 / 4) = 2::

    rank 0: rows 0, 1    rank 1: rows 2, 3    rank 2: row 4    rank 3: none, of shape (0, …)
"""

from __future__ import annotations

import torch
from torch import Tensor


def shard(full: Tensor, size: int, index: int, dim: int = 0) -> Tensor:
    """The part of ``full`` that member ``index`` of ``size`` holds, cut along ``dim`` as ``torch.chunk`` cuts."""
    rows = full.size(dim)
    step = -(-rows // size)
    start = min(index * step, rows)
    return full.narrow(dim, start, min(step, rows - start))


def own(tensor: Tensor) -> Tensor:
    """The very memory."""
    to_local = getattr(tensor, "to_local", None)
    with torch.no_grad():
        part: Tensor = tensor if to_local is None else to_local()
    return part


def local(tensor: Tensor) -> Tensor:
    """A copy."""
    return own(tensor).detach().clone()
