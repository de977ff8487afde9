"""The order in which the suites run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.requirement import Requirement
from suites import conftest
from suites.catalogue import CHAPTERS, LONG, TELLING, entries


class Item:
    """As much of a pytest item as sorting asks for."""

    def __init__(self, requirement: Requirement | None) -> None:
        self.chapter = "" if requirement is None else requirement.chapter
        self._mark = None if requirement is None else pytest.mark.requirement(requirement).mark

    def get_closest_marker(self, name: str) -> Any:
        """The requirement's, if it is one."""
        return self._mark


def test_what_finds_most_comes_first_and_what_takes_long_last() -> None:
    """First what most defects show in, then as a model lives, then long chapters, at last tests of others."""
    ours = [entry.requirement for entry in reversed(entries())]
    items: list[Any] = [Item(None), Item(replace(ours[0], id="other/suite")), *map(Item, ours)]
    conftest.pytest_collection_modifyitems(items)
    found = list(dict.fromkeys(item.chapter for item in items))
    between = [chapter for chapter in CHAPTERS if chapter not in (*TELLING, *LONG)]
    assert found == [*TELLING, *between, *LONG, "", "other"]
    assert sorted(found[:-2]) == sorted(CHAPTERS)
