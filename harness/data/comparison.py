"""Comparing two trees of tensors: the element with the largest difference relative to the allowed one.

difference({"w": [1.0, 2.5]}, {"w": [1.0, 2.0]}, absolute(0.1))
→ Difference(path="'w'[1]", got="2.5", want="2.0", off=0.5, allowed=0.1, ratio=5.0, leaves=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

#: Recorded for a disagreement that no bound measures: another shape, type, key, or a NaN on one side.
UNBOUNDED = 1e30

#: From the path of a leaf and the wanted tensor (float64), the largest absolute difference allowed, element-wise.
Allowance = Callable[[str, Tensor], "Tensor | float"]


def exact(path: str, want: Tensor) -> float:
    """Allow no difference; 0.0 equals -0.0, and NaN equals NaN."""
    return 0.0


def absolute(amount: float) -> Allowance:
    """Allow ``amount`` everywhere."""
    return lambda path, want: amount


@dataclass(frozen=True)
class Difference:
    """The worst place of one comparison. ``ratio`` is off ÷ allowed: 0 when equal, above 1 when it is too much.

    ``ulp`` is the unit in the last place there: that of the subject's dtype at the largest value that is expected in
    the tensor, since bounds are made of such values; 0 if all expected values are 0. For 1.0 in float32 it is 2**-23.
    """

    path: str = ""
    got: str = ""
    want: str = ""
    off: float = 0.0
    allowed: float = 0.0
    ratio: float = 0.0
    leaves: int = 0
    ulp: float = 0.0

    @property
    def too_much(self) -> bool:
        """Whether the disagreement is more than allowed."""
        return self.ratio > 1.0

    def words(self) -> str:
        """The difference in one sentence."""
        words = f"{self.path or 'it'} is {self.got}, expected {self.want}"
        if self.ratio >= UNBOUNDED:
            return words
        return f"{words} (difference {self.off:.3g}, allowed {self.allowed:.3g})"


def difference(got: Any, want: Any, allowance: Allowance = exact) -> Difference:
    """The worst difference between two trees of tensors, numbers, strings, lists, tuples and dicts.

    Tensors must agree in shape and dtype; a float64 ``want`` stands for any floating dtype (it is the oracle).
    """
    found = _Comparison(allowance)
    found.trees(got, want, ())
    return replace(found.worst, leaves=found.leaves)


#: The way to a leaf: a place in a sequence as it is, a key of a dict in a tuple.
Way = tuple[int | tuple[Any], ...]


def _words(way: Way) -> str:
    return "".join(f" {one[0]!r}" if isinstance(one, tuple) else f"[{one}]" for one in way).strip()


class _Comparison:
    """A walk through two trees, and the worst difference so far; of differences alike the first."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance, self.worst, self.leaves = allowance, Difference(), 0

    def trees(self, got: Any, want: Any, way: Way) -> None:
        """Any two."""
        if isinstance(want, Tensor):
            self.tensors(got, want, way)
        elif isinstance(want, dict):
            self.dicts(got, want, way)
        elif isinstance(want, (list, tuple)):
            self.sequences(got, want, way)
        elif type(got) is type(want) and (got == want or (got != got and want != want)):
            self.are_equal(way)
        elif isinstance(want, float) and isinstance(got, float):
            self.tensors(torch.tensor(got, dtype=torch.float64), torch.tensor(want, dtype=torch.float64), way)
        else:
            self.differ(way, repr(got), repr(want))

    def dicts(self, got: Any, want: dict[Any, Any], way: Way) -> None:
        """Key by key, in the same order."""
        if not isinstance(got, dict):
            self.differ(way, f"a {type(got).__name__}", "a dict")
        elif list(got) != list(want):
            self.differ(way, f"{list(got)}", f"{list(want)}", " keys")
        else:
            for key in want:
                self.trees(got[key], want[key], (*way, (key,)))

    def sequences(self, got: Any, want: list[Any] | tuple[Any, ...], way: Way) -> None:
        """One by one."""
        if not isinstance(got, type(want)) or len(got) != len(want):
            self.differ(way, _length(got), _length(want))
        else:
            for place, (left, right) in enumerate(zip(got, want, strict=True)):
                self.trees(left, right, (*way, place))

    def tensors(self, got: Any, want: Tensor, way: Way) -> None:
        """Of the same shape, dtype and values."""
        oracle = isinstance(got, Tensor) and want.dtype == torch.float64 and got.is_floating_point()
        if not isinstance(got, Tensor):
            self.differ(way, f"a {type(got).__name__}", f"a tensor of shape {list(want.shape)}")
        elif got.shape != want.shape:
            self.differ(way, f"of shape {list(got.shape)}", f"shape {list(want.shape)}")
        elif got.dtype != want.dtype and not oracle:
            self.differ(way, f"of dtype {got.dtype}", f"dtype {want.dtype}")
        elif not want.numel() or (got.device == want.device and torch.equal(got.to(want.dtype), want)):  # usually
            self.are_equal(way)
        else:
            self.values(got, want, way)

    def values(self, got: Tensor, want: Tensor, way: Way) -> None:
        """Number by number."""
        self.leaves += 1
        wide = torch.complex128 if want.is_complex() else torch.float64
        left, right = got.detach().to("cpu", wide), want.detach().to("cpu", wide)
        allowed = self.allowance(_words(way), right)
        off = (left - right).abs()
        if self.worst.path and bool((off <= self.worst.ratio * allowed).all()):  # usually
            return
        allowed = torch.as_tensor(allowed, dtype=torch.float64).expand(want.shape)
        same = (left == right) | (left.isnan() & right.isnan())
        ratio = torch.where(same, 0.0, off / allowed).nan_to_num(nan=UNBOUNDED, posinf=UNBOUNDED).clamp(max=UNBOUNDED)
        index = [int(place) for place in torch.unravel_index(ratio.argmax(), want.shape)]
        at = tuple(index)
        if ratio[at] > self.worst.ratio or not self.worst.path:
            self.worst = Difference(
                f"{_words(way)}{index}" if index else _words(way),
                repr(left[at].item()),
                repr(right[at].item()),
                float(off[at].nan_to_num(nan=float("inf"))) if not same[at] else 0.0,
                float(allowed[at]),
                float(ratio[at]),
                ulp=_ulp(got.dtype, float(right.abs().max())) if got.is_floating_point() else 0.0,
            )

    def are_equal(self, way: Way) -> None:
        """Count a leaf."""
        self.leaves += 1
        if not self.worst.path:
            self.worst = Difference(_words(way), "equal", "equal")

    def differ(self, way: Way, got: str, want: str, what: str = "") -> None:
        """Take what no bound measures, if it is the first."""
        self.leaves += 1
        if self.worst.ratio < UNBOUNDED:
            path = f"{_words(way)}{what}".strip()
            self.worst = Difference(path, got, want, float("inf"), 0.0, UNBOUNDED)


def _length(value: Any) -> str:
    return f"a {type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else f"a {type(value).__name__}"


def _ulp(dtype: torch.dtype, value: float) -> float:
    """The unit in the last place of a dtype at a value: what the last bit of its significand is worth.

    0 if there is none: at values that are not finite, and at 0, which is exact in every dtype.
    """
    known = torch.finfo(dtype)
    if not math.isfinite(value) or value == 0:
        return 0.0
    return math.ldexp(known.eps, math.frexp(max(value, known.smallest_normal))[1] - 1)
