"""A backend's own check of what its device did during a program: what a memory or race checker has found, say."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harness.worlds.base import Fate, Outcome

Check = Callable[[], Sequence[str]]


def no_check() -> Sequence[str]:
    """A device that checks nothing."""
    return ()


def named_function(name: str) -> Callable[..., Any]:
    """What a backend names as ``module:function``. Raises what importing it raises."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def load_check(name: str) -> Check:
    """The function of ``Backend.check``."""
    return named_function(name) if name else no_check


def faulted(outcomes: list[Outcome], found: Sequence[str]) -> list[Outcome]:
    """The outcomes of a program during which a device found something: it fails, or says so beside what failed it."""
    if not found:
        return outcomes
    words = "\n".join(found)
    failed = next((place for place, one in enumerate(outcomes) if one.fate is not Fate.RETURNED), None)
    place = failed or 0
    one = outcomes[place]
    if failed is None:
        changed = replace(one, fate=Fate.FAULTY, error=words)
    else:
        changed = replace(one, error=f"{one.error}\n{words}")
    return [*outcomes[:place], changed, *outcomes[place + 1 :]]
