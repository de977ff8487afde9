"""Whether what a vendor's module or ``--case`` gives has the types that a dataclass declares, and what JSON data is.

For a field ``worlds: list[str]``, ``["threads"]`` fits, and ``"threads"`` and ``["threads", 2]`` do not.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

#: How deep data from outside may be nested: more than any of ours, and less than what Python's own recursion stands.
MOST_DEEP = 64


def misfit(built: Any) -> str:
    """The name of the first field of a dataclass whose value has another type than declared; "" if all fit."""
    cls: Any = type(built)
    hints = _hints(cls)
    return next((f.name for f in fields(built) if not fits(getattr(built, f.name), hints.get(f.name, Any))), "")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type that an annotation says; an integer is a float, too, and no bool is a number."""
    if hint is Any:
        return True
    if get_origin(hint) is not None:
        return _fits_generic(value, get_origin(hint), get_args(hint))
    if hint in (int, float) and isinstance(value, int):
        return not isinstance(value, bool)
    if not isinstance(hint, type):
        return True  # what this file does not know, it does not judge
    if issubclass(hint, Enum):
        return any(value == member for member in hint)  # the plain value of a str-Enum too
    return isinstance(value, hint) and not (is_dataclass(value) and misfit(value))


def _fits_generic(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is Callable:
        return callable(value)
    if origin in (dict, Mapping):
        keys, values = inner
        return isinstance(value, Mapping) and _all_fit(value, keys) and _all_fit(value.values(), values)
    if origin is tuple and inner[-1] is not ...:
        alike = isinstance(value, tuple) and len(value) == len(inner)
        return alike and all(map(fits, value, inner))
    kinds: Any = {frozenset: (set, frozenset), set: (set, frozenset)}.get(origin, origin)
    return isinstance(value, kinds) and (not isinstance(value, Collection) or _all_fit(value, inner[0]))


def _all_fit(items: Collection[Any], hint: Any) -> bool:
    return all(fits(item, hint) for item in items)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """The annotations of a dataclass; none where they name what only a type checker imports."""
    try:
        return get_type_hints(cls)
    except NameError:
        return {}


def is_json(tree: Any) -> bool:
    """Whether this is data that every JSON reader has: numbers are finite and fit a float, and it is not too deep."""
    return not is_deep(tree) and _is_json(tree)


def _is_json(node: Any) -> bool:
    if isinstance(node, (dict, list, tuple)):
        keys = node if isinstance(node, dict) else ()
        return all(isinstance(key, str) for key in keys) and all(map(_is_json, _inner(node)))
    if isinstance(node, (int, float)):
        return abs(node) <= sys.float_info.max
    return node is None or isinstance(node, str)


def is_deep(tree: Any, most: int = MOST_DEEP) -> bool:
    """Whether JSON data is nested as deep as ``most``, or deeper, found without recursion."""
    level = [tree]
    for _ in range(most):
        level = [item for node in level for item in _inner(node)]
        if not level:
            return False
    return True


def _inner(node: Any) -> Collection[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, (list, tuple)) else ()
