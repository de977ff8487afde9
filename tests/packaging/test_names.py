"""The names that others rely on: of modules, and of what is in them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fsdp_conformance
import harness.vendor
from fsdp_conformance.installed import PACKAGES, ROOT, current_folder_last, intruder, place_of


def test_vendors_have_one_stable_import() -> None:
    """All names of ``harness.vendor`` are in ``fsdp_conformance``, and nothing else is."""
    names = [name for name, value in vars(harness.vendor).items() if name[0] != "_" and not inspect.ismodule(value)]
    assert {"Backend", "Implementation", "Feature", "CORE", "TORCH_FSDP2", "StateDicts"} <= set(names)
    assert all(getattr(fsdp_conformance, name) is getattr(harness.vendor, name) for name in names)
    with pytest.raises(AttributeError):
        fsdp_conformance.Backnd  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    """pytest imports it wherever it is installed, for tests that have nothing to do with it."""
    code = "import sys, fsdp_conformance.entry_point\nassert not {'harness', 'torch', 'suites'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def test_our_packages_are_where_they_belong() -> None:
    """In a checkout nothing is in their place."""
    assert intruder() == ""
    assert [place_of(name) for name in PACKAGES] == [ROOT / name for name in PACKAGES]


def said_of(there: str, tmp_path: Path) -> str:
    """What is said where this file comes first in Python's path."""
    path = tmp_path / there
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    code = "from fsdp_conformance.installed import intruder\nprint(intruder())"
    line = [sys.executable, "-c", code]
    return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("there", ["harness/__init__.py", "suites.py"])
def test_what_is_in_the_place_of_ours_is_named(there: str, tmp_path: Path) -> None:
    """A package or a module of that name: which it is, and what to do."""
    found = tmp_path / there.removesuffix("/__init__.py")
    expected = f"expected the package {found.stem!r} of fsdp-conformance in {ROOT}, found {found}: run from another"
    assert said_of(there, tmp_path).startswith(expected)


def test_a_folder_without_modules_is_in_nobodys_place(tmp_path: Path) -> None:
    """Python passes it over."""
    assert said_of("harness/notes.txt", tmp_path) == "\n"


@pytest.mark.parametrize("first", [True, False])
def test_the_current_folder_goes_last(first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``python -m`` begins with it, and as a script begins without it; once is enough."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*([str(tmp_path)] if first else []), "/elsewhere"])
    current_folder_last()
    assert sys.path == ["/elsewhere", str(tmp_path)]
    current_folder_last()
    assert sys.path == ["/elsewhere", str(tmp_path)]


def test_a_checkout_that_one_stands_in_stays_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """There ``python -m`` means what is in it, whatever is installed."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), "/elsewhere"])
    current_folder_last()
    assert sys.path == [str(ROOT), "/elsewhere"]
