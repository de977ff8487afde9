"""Every requirement says what it requires, under an id of its own, and its cases have names of their own."""

from __future__ import annotations

import re

import pytest

from harness.data.case import Case
from suites.catalogue import Entry, entries


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.requirement.id)
def test_a_requirement_is_one_sentence(entry: Entry) -> None:
    """The docstring is the requirement as the page shows it, and the test's name is its short form."""
    statement = " ".join((entry.test.__doc__ or "").split())
    assert re.fullmatch(r".+[^.]\.", statement), f"not a sentence: {statement!r}"
    assert not re.search(r"[a-z)`][.!?] [A-Z]", statement), f"more than one sentence: {statement!r}"
    assert len(entry.test.__name__.split("_")) >= 4, f"no sentence: {entry.test.__name__}"


def test_requirement_ids_are_unique() -> None:
    """An id names one requirement for ever."""
    ids = sorted(entry.requirement.id for entry in entries())
    assert ids == sorted(set(ids))


def test_a_file_is_one_chapter() -> None:
    """All requirements of a file have the same chapter in their ids."""
    chapters: dict[str, set[str]] = {}
    for entry in entries():
        chapters.setdefault(entry.module, set()).add(entry.requirement.chapter)
    assert {module: names for module, names in chapters.items() if len(names) > 1} == {}


def test_case_classes_have_names_of_their_own() -> None:
    """A recorded case names its class without its module, so no two classes of the suites share a name."""
    classes, waiting = set(), list(Case.__subclasses__())
    while waiting:
        one = waiting.pop()
        classes.add(one)
        waiting += one.__subclasses__()
    names = sorted(one.__name__ for one in classes if one.__module__.startswith("suites."))
    assert names == sorted(set(names))
