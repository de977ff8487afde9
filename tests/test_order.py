"""The order in which the suites run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.requirement import Requirement
from suites import conftest
from suites.catalogue import CHAPTERS, entries


class Item:
    """As much of a pytest item as sorting asks for."""

    def __init__(self, requirement: Requirement | None) -> None:
        self.chapter = "" if requirement is None else requirement.chapter
        self._mark = None if requirement is None else pytest.mark.requirement(requirement).mark

    def get_closest_marker(self, name: str) -> Any:
        """The requirement's, if it is one."""
        return self._mark


def test_what_finds_most_comes_first_and_the_rest_as_a_model_lives() -> None:
    """First what most faults show in, then the other chapters as a model lives, last what is no requirement of ours."""
    ours = [entry.requirement for entry in reversed(entries())]
    items: list[Any] = [Item(None), Item(replace(ours[0], id="somebody/else")), *map(Item, ours)]
    conftest.pytest_collection_modifyitems(items)
    found = list(dict.fromkeys(item.chapter for item in items))
    first = ["parity", "entry", "generated", "scripts"]
    assert found == [*first, *(chapter for chapter in CHAPTERS if chapter not in first), "", "somebody"]
