"""How far off all gradients, or all parameters, may be together, where one by one their roundings are coarse.

A number of bfloat16 may be off by several times itself, since e of [Note: the bound] is one sample of what can be. The
numbers of a net together are off by about as much as those of the sample together: in 3,200 scenarios of low precision
that were drawn at random by twice as much at most, or 7.6 times where all is rounded anew. So with Euclidean norms over
all tensors of all ranks, n and u as there::

    ‖got - wide‖ ≤ (TIMES · max(‖e‖ / ‖wide‖) + (n + 1) · u) · ‖wide‖

with the maximum over all actions; where all is rounded anew, SAMPLES instead of TIMES.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from typing import Any

from torch import Tensor

from suites.oracle.unsharded import State

#: How much larger an error may be than its sample.
TIMES = 8.0
#: From this unit roundoff on, which is that of neither float32 nor float64.
COARSE = 2.0**-12
LOOKS = ("gradients", "parameters")


def together(rounded: list[State], wide: list[State], times: float, added: float) -> dict[str, float]:
    """What share of themselves the tensors of each look may be off; ``added`` is (n + 1) · u."""
    shares: dict[str, float] = {}
    for near, far in zip(rounded, wide, strict=True):
        for look in [look for look in LOOKS if look in far]:
            size = _norm(full for _, full in _named(far[look]))
            off = _norm(near[look][name].double() - full.double() for name, full in _named(far[look]))
            shares[look] = max(shares.get(look, added), times * off / size + added if size else 0.0)
    return shares


def apart(gots: list[Any], dues: list[State], look: str) -> tuple[float, float] | None:
    """How far off the tensors of all ranks are together, and how large they should be; None if one lacks its shape."""
    pairs = [
        (got[look].get(name), full) for got, due in zip(gots, dues, strict=True) for name, full in _named(due[look])
    ]
    if any(not isinstance(got, Tensor) or got.shape != full.shape for got, full in pairs):
        return None
    return _norm(got.double() - full.double() for got, full in pairs), _norm(full for _, full in pairs)


def _named(look: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The floating tensors among what is due."""
    for name, full in look.items():
        if isinstance(full, Tensor) and full.is_floating_point():
            yield name, full


def _norm(tensors: Iterable[Tensor]) -> float:
    return sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
