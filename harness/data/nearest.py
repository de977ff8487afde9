"""Two cases as JSON, beside each other: which values they do not share.

``{"world_size": 2, "net": {"dim": 3}}`` and ``{"world_size": 2, "net": {"dim": 4}}`` differ in ``{"net.dim": (3, 4)}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: What one of two cases has no value for.
ABSENT = "nothing"
#: What says which numbers are drawn, and nothing about the situation.
_SILENT = "seed"


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The values in which two cases differ, by their names."""
    left, right = dict(_flat(one, "")), dict(_flat(other, ""))
    names = [name for name in {**left, **right} if name.rpartition(".")[2] != _SILENT]
    pairs = {name: (left.get(name, ABSENT), right.get(name, ABSENT)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def has_same_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the same random numbers are drawn for both."""
    return _seeds(one) == _seeds(other)


def nearest(case: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The one of the others that differs from a case in the fewest values, but in some; None if there is none."""
    counted = [(len(apart(case, other)), other) for other in others]
    return min((pair for pair in counted if pair[0]), key=lambda pair: pair[0], default=(0, None))[1]


def _flat(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _seeds(case: Mapping[str, Any]) -> list[Any]:
    return [value for name, value in _flat(case, "") if name.rpartition(".")[2] == _SILENT]
