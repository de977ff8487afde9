"""What a program raised on one rank, and whether it is the refusal that a requirement expects.

Expected is a ValueError that says "1D"; what was raised, and the cause of failure::

    ValueError: the mesh must be 1D                      none: as expected
    nothing                                              not refused
    ValueError: another message, or a RuntimeError       refused otherwise
    TypeError: 'NoneType' object is not iterable         raised instead: an accident, which refuses nothing
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from harness.worlds.base import Program
from harness.worlds.rank import Rank

NOT_REFUSED, REFUSED_OTHERWISE, RAISED_INSTEAD = "not refused", "refused otherwise", "raised instead"
#: What Python raises for code that goes wrong. As a refusal it counts only where the requirement names it.
ACCIDENTS = frozenset({"TypeError", "AttributeError", "NameError", "LookupError", "ArithmeticError", "ImportError"})


class Raised(TypedDict):
    """An exception as plain data: the names of its class and of all bases, in their order, and its message."""

    types: list[str]
    message: str


def as_data(error: BaseException) -> Raised:
    """The exception as plain data."""
    return {"types": [cls.__name__ for cls in type(error).__mro__], "message": str(error)}


def refused(rank: Rank, case: Any, program: Program) -> Raised | None:
    """On every rank: run ``program`` and return what it raised; None if it returned."""
    try:
        program(rank, case)
    except Exception as error:
        return as_data(error)
    return None


def cause_of(raised: Raised | None, names: tuple[str, ...], match: str) -> str:
    """The cause of failure where an error of one of these names was expected, with ``match`` in its message, or ""."""
    if raised is None:
        return NOT_REFUSED
    if set(names) & set(raised["types"]) and re.search(match, raised["message"]):
        return ""
    return RAISED_INSTEAD if ACCIDENTS & set(raised["types"]) else REFUSED_OTHERWISE
