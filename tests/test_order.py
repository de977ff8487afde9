"""The order in which the suites run."""

from __future__ import annotations

from typing import Any

import pytest

from suites import conftest
from suites.catalogue import CHAPTERS, Entry, entries


class Item:
    """As much of a pytest item as sorting asks for."""

    def __init__(self, entry: Entry | None) -> None:
        self.chapter = "" if entry is None else entry.requirement.chapter
        self._mark = None if entry is None else pytest.mark.requirement(entry.requirement).mark

    def get_closest_marker(self, name: str) -> Any:
        """The requirement's, if it is one."""
        return self._mark


def test_what_finds_most_comes_first_and_the_rest_as_a_model_lives() -> None:
    """Parity is judged first, then chapter after chapter of a model's life, and what is no requirement last."""
    items: list[Any] = [Item(None), *(Item(entry) for entry in reversed(entries()))]
    conftest.pytest_collection_modifyitems(items)
    found = list(dict.fromkeys(item.chapter for item in items))
    assert found == ["parity", *(chapter for chapter in CHAPTERS if chapter != "parity"), ""]
