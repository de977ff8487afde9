"""The start of a run, and its order: what most defects show in, then the chapters as a model lives, then long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pytest_plugin.places import named_paths
from harness.pytest_plugin.starting import start_ahead
from harness.requirement import requirement_of
from suites.catalogue import RUN_ORDER

_HERE = Path(__file__).resolve().parent
_PLACES = {chapter: place for place, chapter in enumerate(RUN_ORDER)}


def pytest_configure(config: pytest.Config) -> None:
    """Have ranks get ready while tests are collected."""
    start_ahead(config, [_module(file) for file in _named(config) if file.is_relative_to(_HERE)])


def _named(config: pytest.Config) -> list[Path]:
    """The test files that the command line names."""
    paths = [path.resolve() for path in named_paths(config)]
    return [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]


def _module(file: Path) -> str:
    return ".".join((str(__package__), *file.relative_to(_HERE).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by chapter; within one, and for what is in none of ours, the order stays."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    found = requirement_of(item)
    return len(_PLACES) if found is None else _PLACES.get(found.chapter, len(_PLACES))
