"""How far off all numbers of a kind may be together, where each rounds coarsely: losses, outputs, gradients, …

A number of bfloat16 may be off by several times itself, since e of [Note: the bound] is one sample of what can be. All
numbers together are off by about as much as those of the sample together: in 4,500 scenarios of low precision that were
drawn at random by twice as much at most, or 7.6 times where all is rounded anew. Gradients magnify roundings most: of
some 30,000 scenarios they were off by 9 times in one. So with Euclidean norms over all tensors of all ranks, n and u
as there::

    ‖got - wide‖ ≤ (TIMES · max(‖e‖ / ‖wide‖) + (n + 1) · u) · ‖wide‖

with the maximum over all actions, and at least OF_GRADIENTS instead of TIMES for gradients; where all is rounded anew,
SAMPLES. Losses are one number a rank, and are taken together over all actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any

from torch import Tensor

from suites.oracle.unsharded import State

#: How much larger an error may be than its sample.
TIMES, OF_GRADIENTS = 8.0, 16.0
#: From this unit roundoff on, which is that of neither float32 nor float64.
COARSE = 2.0**-12
#: By look, tensors by the way to them.
Looks = dict[str, dict[str, Tensor]]
#: What is judged together of what is seen.
SEEN = ("gradients", "parameters", "losses")


def together(rounded: list[State], wide: list[State], times: float, added: float) -> dict[str, float]:
    """What share of themselves the tensors of each look may be off; ``added`` is (n + 1) · u."""
    shares: dict[str, float] = {}
    for near, far in zip([*rounded, losses(rounded)], [*wide, losses(wide)], strict=True):
        gots = looks(near)
        for look, due in looks(far).items():
            size = _norm(due.values())
            off = _norm(gots[look][path].double() - full.double() for path, full in due.items())
            most = max(times, OF_GRADIENTS) if look == "gradients" else times
            shares[look] = max(shares.get(look, added), most * off / size + added if size else 0.0)
    return shares


def losses(states: list[State]) -> State:
    """All losses of all actions, of all ranks or of one, as if they were seen at the end."""
    return {"losses": [_given(state, "losses") for state in states]}


def apart(gots: list[Looks], dues: list[Looks], look: str) -> tuple[float, float] | None:
    """How far off the tensors of all ranks are together, and how large they should be.

    None if none is due, or one lacks its shape.
    """
    on_ranks = [(got.get(look, {}), due.get(look, {})) for got, due in zip(gots, dues, strict=True)]
    pairs = [(got.get(path), full) for got, due in on_ranks for path, full in due.items()]
    if not pairs or any(got is None or got.shape != full.shape for got, full in pairs):
        return None
    off = _norm(got.double() - full.double() for got, full in pairs if got is not None)
    return off, _norm(full for _, full in pairs)


def looks(seen: State) -> Looks:
    """The floating tensors of each look, by the way to them."""
    kept = seen.get("optimizer") or {}
    keys = dict.fromkeys(key for each in kept.values() for key in each or ())
    trees = {
        **{look: seen.get(look) for look in SEEN},
        "outputs": _given(seen, "outputs"),
        **{f"optimizer's {key}": {name: each.get(key) for name, each in kept.items() if each} for key in keys},
    }
    found = {look: dict(_leaves(tree)) for look, tree in trees.items()}
    return {look: tensors for look, tensors in found.items() if tensors}


def _given(seen: State, what: str) -> list[Any]:
    """What an action has given, on all ranks or on one."""
    found = seen.get("found", [])
    return [each.get(what) for each in (found if isinstance(found, list) else [found])]


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor) and tree.is_floating_point():
        yield path, tree
    elif isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, f"{path}/{key}")


def _norm(tensors: Iterable[Tensor]) -> float:
    return sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
