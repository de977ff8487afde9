"""Which rank holds which rows: the arithmetic of sharding, without any process group.

Five rows on four ranks, in chunks of ceil(5 / 4) = 2::

    rank 0: rows 0, 1    rank 1: rows 2, 3    rank 2: row 4    rank 3: none, of shape (0, …)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.vendor import Feature
from harness.vendor.bounds import asks_for, claims, whole


def shard(full: Tensor, size: int, index: int, dim: int = 0) -> Tensor:
    """The part that member ``index`` of ``size`` holds, cut along ``dim`` as ``torch.chunk`` cuts; of one, all."""
    if size == 1:
        return full
    rows = full.size(dim)
    step = -(-rows // size)
    start = min(index * step, rows)
    return full.narrow(dim, start, min(step, rows - start))


def even(rows: int) -> int:
    """So many rows; or where uneven ones are not claimed the next number that one, two and four ranks divide."""
    return rows if Feature.UNEVEN_ROWS in claims() else -(-rows // 4) * 4


def own(tensor: Tensor) -> Tensor:
    """The very memory of a rank's part, as no leaf, so that it may be written to."""
    to_local = getattr(tensor, "to_local", None)
    with torch.no_grad():
        part: Tensor = tensor if to_local is None else to_local()
    return part.detach()


def local(tensor: Tensor) -> Tensor:
    """A copy of a rank's part, which is looked at only where it must be the rows that torch would give it."""
    asks_for(Feature.ROW_LAYOUT)
    return own(tensor).detach().clone()


def seen(tensor: Tensor, parameter: Tensor | None = None) -> Tensor:
    """A copy of what is compared: the rank's part; or all of it, where rows need not lie as torch lays them out.

    ``parameter`` is what the tensor is the gradient or the optimizer's state of, if it is no parameter itself.
    """
    return own(tensor).detach().clone() if lies_in_rows() else put_together(tensor, parameter)


def put_together(tensor: Tensor, parameter: Tensor | None = None) -> Tensor:
    """A copy of all of a sharded tensor, which its ranks put together; of any other, and of a count, as it is."""
    is_count = parameter is not None and not tensor.dim()
    return own(tensor if is_count else whole(tensor, tensor if parameter is None else parameter)).detach().clone()


def put_end_to_end(gots: list[Any], dues: list[Any], shards: int) -> list[Any]:
    """What ranks have shown, with parts of a whole tensor that is due replaced by all of them, one after the other.

    Each ``shards`` neighbours hold one copy. On two ranks that hold [1, 2, 3] and [4] of [[1, 2], [3, 4]], both get
    that; what is not a part of it stays as it is. Zeros where nothing is due count as nothing, if that may be.
    """
    if claims() >= {Feature.ROW_LAYOUT, Feature.NONE_FOR_UNUSED}:
        return gots
    groups = [range(first, min(first + shards, len(gots))) for first in range(0, len(gots), shards)]
    return [each for group in groups for each in _joined([gots[n] for n in group], [dues[n] for n in group])]


def _joined(gots: list[Any], dues: list[Any]) -> list[Any]:
    if all(due is None for due in dues) and Feature.NONE_FOR_UNUSED not in claims():
        return [None if isinstance(got, Tensor) and not got.any() else got for got in gots]
    if all(isinstance(due, Tensor) and due.shape == dues[0].shape for due in dues):
        return gots if lies_in_rows() else _whole_of_parts(gots, dues[0])
    if any(isinstance(got, dict) for got in gots) and all(isinstance(due, dict) for due in dues):
        gots = [{} if got is None else got for got in gots]  # of a parameter of which it has no part
    if all(isinstance(each, dict) for each in (*gots, *dues)):
        keys = dict.fromkeys(key for each in (*dues, *gots) for key in each)
        columns = {key: _joined([got.get(key) for got in gots], [due.get(key) for due in dues]) for key in keys}
        there = zip(gots, dues, strict=True)
        return [
            {key: columns[key][n] for key in keys if key in got or key in due} for n, (got, due) in enumerate(there)
        ]
    if all(isinstance(each, list) and len(each) == len(dues[0]) for each in (*gots, *dues)):
        rows = [_joined([got[n] for got in gots], [due[n] for due in dues]) for n in range(len(dues[0]))]
        return [[row[n] for row in rows] for n in range(len(gots))]
    return gots


def _whole_of_parts(parts: list[Any], due: Tensor) -> list[Any]:
    held = [part for part in parts if isinstance(part, Tensor)]
    if all(part.shape == due.shape for part in held) and len(held) == len(parts):
        return parts
    if held and not due.dim():  # a count, which is the same on all
        return [held[0] if part is None else part for part in parts]
    if not held or sum(part.numel() for part in held) != due.numel():
        return parts
    flat = torch.cat([part.flatten() for part in held])
    rows, memory = flat.view(due.shape), flat.as_strided(due.shape, due.stride())
    if due.is_contiguous():
        return [rows] * len(parts)
    return [min(rows, memory, key=lambda one: float((one - due).abs().sum()))] * len(parts)  # which of them is open


def lies_in_rows() -> bool:
    """Whether each rank must hold the rows that torch would give it."""
    return Feature.ROW_LAYOUT in claims()


def is_dtensor(tensor: object) -> bool:
    """Whether a tensor says how it is sharded, of whatever class it is."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")
