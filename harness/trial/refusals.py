"""What a program raised on one rank, and whether it is the refusal that a requirement expects.

A refusal is judged by what it refuses, not by its wording: by the class of the error, and by what its message names.
Expected is one of ``ERRORS`` that names "mesh" or "1D"; what was raised, and the cause of failure::

    ValueError: give me a mesh of one axis               none: as expected
    nothing                                              not refused
    ValueError: that cannot be, or a KeyError            refused otherwise
    TypeError: 'NoneType' object is not iterable         raised instead: an accident, which refuses nothing
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from harness.worlds.base import Program, is_our_assertion
from harness.worlds.rank import Rank

NOT_REFUSED, REFUSED_OTHERWISE, RAISED_INSTEAD = "not refused", "refused otherwise", "raised instead"
#: What Python raises for code that goes wrong. As a refusal it counts only where the requirement names it.
ACCIDENTS = frozenset({"TypeError", "AttributeError", "NameError", "LookupError", "ArithmeticError", "ImportError"})
#: The classes that a refusal may be of; RuntimeError has NotImplementedError below it.
ERRORS = ("ValueError", "AssertionError", "RuntimeError")
#: The same where what is given may be of a wrong type.
TYPE_ERRORS = (*ERRORS, "TypeError")


class Raised(TypedDict):
    """An exception as plain data: the names of its class and of all bases, in their order, and its message."""

    types: list[str]
    message: str


def as_data(error: BaseException) -> Raised:
    """The exception as plain data. Raises it again if it is an assertion of ours: that refuses nothing."""
    if is_our_assertion(error):
        raise error
    return {"types": [cls.__name__ for cls in type(error).__mro__], "message": str(error)}


def refused(rank: Rank, case: Any, program: Program) -> Raised | None:
    """On every rank: run ``program`` and return what it raised; None if it returned."""
    try:
        program(rank, case)
    except Exception as error:
        return as_data(error)
    return None


def cause_of(raised: Raised | None, classes: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The cause of failure where an error of these classes was expected that names one of ``names``, or ""."""
    if raised is None:
        return NOT_REFUSED
    if set(classes) & set(raised["types"]) and any(is_named(name, raised["message"]) for name in names):
        return ""
    return RAISED_INSTEAD if ACCIDENTS & set(raised["types"]) else REFUSED_OTHERWISE


def is_named(name: str, message: str) -> bool:
    """Whether a message has the words, or their plural, by themselves: "2" is not in "12", "mesh" not in "meshed"."""
    words = r"\s+".join(map(re.escape, name.split()))
    return re.search(rf"(?<!\w){words}s?(?!\w)", message, re.IGNORECASE) is not None
