"""Comparing two trees of tensors: the element with the largest difference relative to the allowed one.

difference({"w": [1.0, 2.5]}, {"w": [1.0, 2.0]}, absolute(0.1))
→ Difference(path="'w'[1]", got="2.5", want="2.0", off=0.5, allowed=0.1, ratio=5.0, leaves=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
    worst, leaves = Difference(), 0
    for found in _leaves(got, want, "", allowance):
        leaves += found.leaves
        if found.ratio > worst.ratio or not worst.path:
            worst = found
    return replace(worst, leaves=leaves)


def _leaves(got: Any, want: Any, path: str, allowance: Allowance) -> Iterator[Difference]:
    if isinstance(want, Tensor):
        yield _tensors(got, want, path, allowance)
    elif isinstance(want, dict):
        yield from _dicts(got, want, path, allowance)
    elif isinstance(want, (list, tuple)):
        yield from _sequences(got, want, path, allowance)
    elif type(got) is type(want) and (got == want or (got != got and want != want)):
        yield Difference(path, repr(got), repr(want), leaves=1)
    elif isinstance(want, float) and isinstance(got, float):
        yield _tensors(torch.tensor(got, dtype=torch.float64), torch.tensor(want, dtype=torch.float64), path, allowance)
    else:
        yield _unbounded(path, repr(got), repr(want))


def _dicts(got: Any, want: dict[Any, Any], path: str, allowance: Allowance) -> Iterator[Difference]:
    if not isinstance(got, dict):
        yield _unbounded(path, f"a {type(got).__name__}", "a dict")
    elif list(got) != list(want):
        yield _unbounded(f"{path} keys".strip(), f"{list(got)}", f"{list(want)}")
    else:
        for key in want:
            yield from _leaves(got[key], want[key], f"{path} {key!r}".strip(), allowance)


def _sequences(got: Any, want: Any, path: str, allowance: Allowance) -> Iterator[Difference]:
    if not isinstance(got, type(want)) or len(got) != len(want):
        yield _unbounded(path, _length(got), _length(want))
    else:
        for place, (left, right) in enumerate(zip(got, want, strict=True)):
            yield from _leaves(left, right, f"{path}[{place}]", allowance)


def _length(value: Any) -> str:
    return f"a {type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else f"a {type(value).__name__}"


def _unbounded(path: str, got: str, want: str) -> Difference:
    return Difference(path, got, want, float("inf"), 0.0, UNBOUNDED, leaves=1)


def _tensors(got: Any, want: Tensor, path: str, allowance: Allowance) -> Difference:
    if not isinstance(got, Tensor):
        return _unbounded(path, f"a {type(got).__name__}", f"a tensor of shape {list(want.shape)}")
    if got.shape != want.shape:
        return _unbounded(path, f"of shape {list(got.shape)}", f"shape {list(want.shape)}")
    oracle = want.dtype == torch.float64 and got.is_floating_point()
    if got.dtype != want.dtype and not oracle:
        return _unbounded(path, f"of dtype {got.dtype}", f"dtype {want.dtype}")
    if want.numel() == 0:
        return Difference(path, "empty", "empty", leaves=1)
    if got.device == want.device and torch.equal(got.to(want.dtype), want):  # fast, and the usual case
        return Difference(path, "equal", "equal", leaves=1)
    return _values(got, want, path, allowance)


def _values(got: Tensor, want: Tensor, path: str, allowance: Allowance) -> Difference:
    wide = torch.complex128 if want.is_complex() else torch.float64
    left, right = got.detach().to("cpu", wide).reshape(-1), want.detach().to("cpu", wide).reshape(-1)
    bound = allowance(path, right.reshape(want.shape))
    allowed = torch.as_tensor(bound, dtype=torch.float64).expand(want.shape).reshape(-1)
    off = (left - right).abs()
    same = (left == right) | (left.isnan() & right.isnan())
    ratio = torch.where(same, 0.0, off / allowed).nan_to_num(nan=UNBOUNDED, posinf=UNBOUNDED)
    place = int(ratio.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), want.shape)]
    return Difference(
        f"{path}{index}" if index else path,
        repr(left[place].item()),
        repr(right[place].item()),
        float(off[place].nan_to_num(nan=float("inf"))) if not same[place] else 0.0,
        float(allowed[place]),
        min(float(ratio[place]), UNBOUNDED),
        leaves=1,
        ulp=_ulp(got.dtype, float(right.abs().max())) if got.is_floating_point() else 0.0,
    )


def _ulp(dtype: torch.dtype, value: float) -> float:
    """The unit in the last place of a dtype at a value: what the last bit of its significand is worth.

    0 if there is none: at values that are not finite, and at 0, which is exact in every dtype.
    """
    known = torch.finfo(dtype)
    if not math.isfinite(value) or value == 0:
        return 0.0
    return math.ldexp(known.eps, math.frexp(max(value, known.smallest_normal))[1] - 1)
