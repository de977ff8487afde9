"""Which tensors of a failing case agree and which differ, where they first differ: shapes, and by what factor.

Ranks 0 and 1 hold two rows and one of a weight, and have a gradient of it that is half as large again as expected::

    {"where": "rank 0", "path": "'gradients' 'weight'", "shape": [2, 3], "agrees": False, "times": 1.5}
    {"where": "rank 1", "path": "'gradients' 'weight'", "shape": [1, 3], "agrees": False, "times": 1.5}
    {"where": "rank 0", "path": "'gradients' 'bias'", "shape": [1], "agrees": True, "times": None}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from harness.data.comparison import Allowance, difference

#: How many tensors of one case are recorded.
MOST_TENSORS = 96
#: Quotients of one tensor that are this close, relatively, or as its dtype rounds, are the same factor.
_CLOSE = 1e-3
#: One comparison: whose, what came, what was expected, and how far off it may be.
Compared = tuple[str, Any, Any, Allowance]
_STEP, _RANK = re.compile(r"\[\d+\]"), re.compile(r"rank \d+")


def first_that_differ(compared: Iterable[Compared]) -> list[dict[str, Any]]:
    """The tensors of all ranks at the first moment, an action or a step, at which any differs; [] if none does."""
    moments: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for where, got, want, within in compared:
        for tensor in _tensors(got, want, within, ""):
            step = _STEP.match(tensor["path"])
            moment = (_RANK.sub("", where), step.group() if step else "")
            moments.setdefault(moment, []).append({"where": where, **tensor})
    differing = (tensors for tensors in moments.values() if not all(one["agrees"] for one in tensors))
    return next(differing, [])[:MOST_TENSORS]


def _tensors(got: Any, want: Any, within: Allowance, path: str) -> Iterator[dict[str, Any]]:
    if isinstance(want, dict) and isinstance(got, dict):
        for key in want:
            yield from _tensors(got.get(key), want[key], within, f"{path} {key!r}".strip())
    elif isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        for place, (left, right) in enumerate(zip(got, want, strict=False)):
            yield from _tensors(left, right, within, f"{path}[{place}]")
    elif isinstance(want, Tensor):
        agrees = not difference(got, want, lambda _, full: within(path, full)).too_much
        times = None if agrees or not isinstance(got, Tensor) else _times(got, want)
        yield {"path": path, "shape": list(want.shape), "agrees": agrees, "times": times}


def _times(got: Tensor, want: Tensor) -> float | None:
    """What came divided by what was expected, if it is the same at every place; None if not, or if all were 0."""
    if got.shape != want.shape or not got.is_floating_point():
        return None
    left, right = got.detach().to("cpu", torch.float64).reshape(-1), want.detach().to("cpu", torch.float64).reshape(-1)
    filled = right != 0
    if not filled.any() or left[~filled].any() or not left.isfinite().all():
        return None
    quotients = left[filled] / right[filled]
    factor = float(quotients[right[filled].abs().argmax()])
    close = max(_CLOSE, 4 * torch.finfo(got.dtype).eps)
    return float(f"{factor:.6g}") if bool(((quotients - factor).abs() <= close * abs(factor)).all()) else None
