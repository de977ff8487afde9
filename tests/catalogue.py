"""Every requirement of the suites, as the tests of the suites themselves need to see it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import suites
from harness.requirement import Requirement


@dataclass(frozen=True)
class Entry:
    """A requirement, its test, and the module that it stands in."""

    requirement: Requirement
    test: Callable[..., None]
    module: str


@cache
def entries() -> tuple[Entry, ...]:
    """All of them, in the order of files and of tests in a file."""
    names = sorted(found.name for found in pkgutil.iter_modules(suites.__path__, "suites."))
    return tuple(
        Entry(mark.args[0], test, name)
        for name in names
        if name.startswith("suites.test_")
        for test in vars(importlib.import_module(name)).values()
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "requirement"
    )
