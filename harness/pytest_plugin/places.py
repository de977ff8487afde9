"""Where tests are: node ids that are the same wherever the suites are installed, and words by which to find a test.

site-packages/suites/setup/test_entry.py, run in any folder ─▶ ``suites/setup/test_entry.py::test_…``, as in a checkout,
                                                       and ─▶ ``pytest --pyargs suites.setup.test_entry::test_…``
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.records.command_lines import located
from harness.records.provenance import suites_folder


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A file of our suites is called so, and not by how one comes to it from pytest's root."""
    folder = _suites_of(module_path)
    if folder is None:
        return None
    nodeid = module_path.resolve().relative_to(folder.parent).as_posix()
    module: pytest.Module = pytest.Module.from_parent(parent, path=module_path, nodeid=nodeid)
    return module


def words_for(item: pytest.Item) -> list[str]:
    """The words by which pytest finds this test again in the folder where it runs now."""
    here, folder = item.config.invocation_params.dir, _suites_of(item.path)
    if folder is not None:
        return located(item.nodeid, folder, here)
    return [os.path.relpath(item.path, here) + "::" + item.nodeid.partition("::")[2]]


def named_paths(config: pytest.Config) -> Iterator[Path]:
    """The files and folders that the command line names."""
    for word in config.args:
        name = word.partition("::")[0]
        yield (_of_module(name) if config.option.pyargs else None) or config.invocation_params.dir / name


def names_suites(config: pytest.Config) -> bool:
    """Whether the command line names a place in our suites."""
    return any(_suites_of(path) for path in named_paths(config))


def _suites_of(path: Path) -> Path | None:
    """The folder of our suites, if the file is in it."""
    folder = suites_folder()
    return folder.resolve() if folder is not None and path.resolve().is_relative_to(folder.resolve()) else None


def _of_module(name: str) -> Path | None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    folders = list(found.submodule_search_locations or [])
    return Path(folders[0] if folders else found.origin or name)
