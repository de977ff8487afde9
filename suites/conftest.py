"""The order of a run: what finds most faults first, then the chapters in the order of a model's life."""

from __future__ import annotations

import pytest

from harness.requirement import requirement_of
from suites.catalogue import CHAPTERS

_PLACES = {chapter: place for place, chapter in enumerate(dict.fromkeys(("parity", *CHAPTERS)))}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by chapter; within one, and for what is in none of ours, the order stays."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    found = requirement_of(item)
    return len(_PLACES) if found is None else _PLACES.get(found.chapter, len(_PLACES))
