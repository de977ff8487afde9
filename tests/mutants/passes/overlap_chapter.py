"""Implementations that gather ahead too late to hide anything; what needs streams to show is in ``virtual_time.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.mutants.hooking import instead
from tests.mutants.making import mutant


def gathers_listed_once_computed(module: Any, setter: Callable[[list[Any]], None], listed: list[Any]) -> None:
    """In backward, what is listed is gathered between a module's computation and its reduction."""
    setter([module])
    module.register_full_backward_hook(lambda *_: _gather(listed))


def _gather(listed: list[Any]) -> None:
    for each in listed:
        each.unshard()


gathers_once_computed = mutant(
    "overlap/issued-ahead", instead("set_modules_to_backward_prefetch", gathers_listed_once_computed)
)
