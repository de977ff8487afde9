"""A wheel of this checkout, and an environment that has it and what it declares to need, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests import ROOT
from tests.patience import GUARD

PACKAGES = ("fsdp_conformance", "harness", "reference_models", "suites")
Completed = subprocess.CompletedProcess[str]


def wheel_of_the_checkout(there: Path) -> Path:
    """A wheel, built without network from a copy: what builds leave behind would come into later ones."""
    sources = there / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
    ended = subprocess.run([sys.executable, "-c", build, str(there)], cwd=sources, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    [wheel] = there.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment with a wheel; ``home`` is the home directory of who uses it, and has all of it."""

    def __init__(self, home: Path, wheel: Path) -> None:
        self.home, self._folder = home, home / "environment"
        venv.create(self._folder, with_pip=False)
        [self.site] = self._folder.glob("lib/python*/site-packages")
        self._install(wheel)
        self.distributions = {found.name: found for found in needed(distribution_of(self.site))}
        tops = {(file.parts[0], found) for found in self.distributions.values() for file in found.files or ()}
        places = {top: Path(str(found.locate_file(top))) for top, found in tops if top not in ("..", "__pycache__")}
        for top, place in places.items():  # some distributions share a package
            (self.site / top).symlink_to(place)
        self._write_pytest()

    def _install(self, wheel: Path) -> None:
        python = self._folder / "bin/python"
        line = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
        ended = subprocess.run([*line, str(wheel)], capture_output=True, text=True, timeout=GUARD)
        assert ended.returncode == 0, ended.stderr

    def _write_pytest(self) -> None:
        """The script that pip would have made: Python has the current folder not at all in its path then."""
        script = self._folder / "bin/pytest"
        lines = [f"#!{self._folder / 'bin/python'}", "import pytest", "raise SystemExit(pytest.console_main())", ""]
        script.write_text("\n".join(lines))
        script.chmod(0o755)

    def run(self, folder: Path, *words: str, **variables: str) -> Completed:
        """A program, first of the environment, started in a folder as from a shell where nothing else is set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV"))}
        path = os.pathsep.join([str(self._folder / "bin"), kept["PATH"]])
        told = {**kept, "PATH": path, "HOME": str(self.home), **variables}
        program = shutil.which(words[0], path=path)
        assert program, f"{words[0]} is not installed"
        line = [program, *words[1:]]
        return subprocess.run(line, cwd=folder, env=told, capture_output=True, text=True, timeout=GUARD)


def distribution_of(site: Path) -> Distribution:
    """What our wheel says of itself, where it is installed."""
    [found] = [each for each in Distribution.discover(path=[str(site)]) if each.name == "fsdp-conformance"]
    return found


def needed(one: Distribution) -> Iterator[Distribution]:
    """The distributions that one needs, and those need, each once."""
    waiting, seen = list(one.requires or ()), {one.name.lower()}
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = distribution(requirement.name)
        if found.name.lower() not in seen:
            seen.add(found.name.lower())
            waiting += found.requires or ()
            yield found
