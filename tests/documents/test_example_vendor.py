"""The example vendor works by the commands that ``docs/vendors.md`` tells, which are taken from there and run.

A block of the page is marked by what is done with it: ``run`` it, have it ``parsed`` by the real parsers, or see it
``refused: with these words``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.commands import bundle
from harness.records.reader import Run, read_run
from harness.records.record import Verdict
from harness.records.standing import State, standing
from harness.vendor import LIMITS, Backend, Feature
from tests import ROOT as ROOT
from tests.documents.shown_commands import commands
from tests.patience import GUARD

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (ROOT / "docs/vendors.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/my_accelerator"
#: Where the page's commands write.
FOLDER = "reports/"


@dataclass(frozen=True)
class Block:
    """A block of shell on the page, and what its mark says."""

    mark: str
    text: str


BLOCKS = [Block(*found) for found in re.findall(r"<!-- ([^>]+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL)]


def blocks(mark: str) -> Iterator[str]:
    """The text of each block that is marked so."""
    return (block.text for block in BLOCKS if block.mark == mark)


@dataclass(frozen=True)
class Shown:
    """What the page's commands printed, and the folder that they wrote to."""

    said: str
    folder: Path

    @property
    def run(self) -> Run:
        """The records of the first rows."""
        return read_run(self.folder / "first.jsonl")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the suite and the example are installed, as pip would leave it."""
    site, programs = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("bin")
    about = site / "my_accelerator-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-accelerator\nVersion: 0.1.0\n")
    groups = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    lines = [line for group, names in groups.items() for line in (f"[{group}]", *map(" = ".join, names.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, module in (("fsdp-conformance", "harness.cli"), ("pytest", "pytest -p no:cacheprovider")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    paths = os.pathsep.join(map(str, (ROOT, EXAMPLE, site)))
    return {**clean, "PATH": os.pathsep.join((str(programs), clean["PATH"])), "PYTHONPATH": paths}


@pytest.fixture(scope="module")
def shown(installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Every block that is to be run, in the order of the page, as one script; the doctor has all the time it needs."""
    folder = tmp_path_factory.mktemp("out")
    lines = "\n".join(blocks("run")).replace(FOLDER, f"{folder}/")
    script = "set -eux\n" + lines.replace("-conformance doctor", f"-conformance doctor --patience {GUARD:.0f}")
    ended = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=installed, capture_output=True, text=True, timeout=GUARD, check=False
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-5000:]
    return Shown(ended.stdout, folder)


def test_every_block_of_the_page_is_marked() -> None:
    """Every shell command on the page is tried, except the lines of pip."""
    assert PAGE.count("```sh") == len(BLOCKS)
    assert Counter(block.mark.partition(":")[0] for block in BLOCKS).keys() == {"install", "run", "parsed", "refused"}


def test_the_doctor_finds_what_the_page_says(shown: Shown) -> None:
    """Completed work and strided tensors, on which no MUST depends; and all else."""
    words = r"fsdp-conformance doctor: \d+ found, 0 missing, 2 wrong, \d+ not tried; no MUST depends on what is missing"
    assert re.search(words, shown.said)
    assert "my_sharding on my_accelerator (myccl on cpu)" in shown.said
    faults = re.findall(r"^(?:missing|wrong) +(\S+): ", shown.said, re.MULTILINE)
    assert faults == ["collectives/completed", "collectives/strided-others"]


def test_what_is_claimed_is_judged_and_passes(shown: Shown) -> None:
    """The rows of features that are claimed pass in both worlds; two chapters are a part of the suites, and say so."""
    state, why = standing(shown.run).state, standing(shown.run).reason
    assert (state, re.sub(r"\d+", "N", why)) == (State.INCOMPLETE, "N requirements of the suites left out of this run")
    passed = {(row.requirement, row.world) for row in shown.run.records if row.verdict is Verdict.PASS}
    assert passed >= {(name, world) for name in ("parity/exact", "sharding/rows") for world in ("threads", "processes")}


def test_what_is_not_claimed_is_a_row_with_its_reason(shown: Shown) -> None:
    """No row is skipped silently: each that needs a feature that is disclaimed says why."""
    idle = {row.requirement: row for row in shown.run.records if row.verdict is Verdict.NOT_CLAIMED}
    assert idle["sharding/2d-mesh"].message == "tensor parallel: ranks have one axis, which shards"
    assert all(set(row.features) & set(shown.run.header.not_claimed) for row in idle.values())


def test_claims_and_reasons_are_of_all_features(shown: Shown) -> None:
    """The example says something of each feature, so that nothing is shown as not mentioned."""
    header = shown.run.header
    assert {*header.claims, *header.not_claimed} == {str(feature) for feature in Feature}
    assert not set(header.claims) & set(header.not_claimed)


def test_the_waiver_of_the_example_is_used_and_in_order(shown: Shown) -> None:
    """It covers two rows, which fail; the others are of chapters that were not asked for."""
    waived = {row.requirement for row in shown.run.records if row.verdict is Verdict.WAIVED}
    assert waived == {"sharding/zero-elements"}
    assert "needed: 2 rows failed in first.jsonl" in shown.said
    assert "4 waivers: 0 errors, 3 warnings" in shown.said


def test_the_failure_of_the_example_is_a_script(shown: Shown) -> None:
    """What is written has the case that fails and names the vendor's modules, and imports nothing of the suite."""
    tree = ast.parse((shown.folder / "repro.py").read_text(encoding="utf-8"))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in imported}
    assert "my_accelerator" in packages
    assert not packages & {"harness", "suites", "pytest", "hypothesis"}


def test_page_and_files_for_others_are_written(shown: Shown) -> None:
    """The page names the subject, and the CTRF file counts its rows."""
    assert "my_sharding 0.1.0 on my_accelerator" in (shown.folder / "first.html").read_text(encoding="utf-8")
    counted = json.loads((shown.folder / "first.ctrf.json").read_text(encoding="utf-8"))["results"]["summary"]
    assert counted["tests"] == len(shown.run.records)


def test_a_run_of_a_part_of_the_suites_cannot_be_submitted(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    """``bundle`` refuses the first results in the words of the page, and writes nothing."""
    [(mark, text)] = [(b.mark, b.text) for b in BLOCKS if b.mark.startswith("refused: ")]
    [words] = commands(text.replace(FOLDER, f"{shown.folder}/"))
    assert bundle.main(words[2:]) == 1
    assert mark.removeprefix("refused: ") in capsys.readouterr().out
    assert not (shown.folder / "submission.zip").exists()


def test_the_page_names_what_a_backend_may_lack() -> None:
    """The names of limits are those that are known to the suite."""
    assert all(f"`{name}`" in PAGE for name in LIMITS)


def test_the_backend_of_ten_lines_is_one() -> None:
    """What the page shows first can be copied as it is."""
    [text, *_] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    named: dict[str, object] = {}
    exec(text, named)
    assert isinstance(named["backend"], Backend)
    assert len(text.strip().splitlines()) - 3 <= 10, "beside the file's name, the import and a blank line"


def test_the_page_installs_what_the_suite_needs() -> None:
    """The packages to install are those that the suite depends on, but torch, which the vendor brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[^\w-]", dependency)[0] for dependency in project["dependencies"]} - {"torch", "tomli"}
    for text in (*blocks("install"), (ROOT / "README.md").read_text(encoding="utf-8")):
        [line] = re.findall(r"pip install (pytest .*?)(?: &&|\n)", text)
        assert set(line.split()) == needed
