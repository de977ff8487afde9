"""The examples for CI do what they say where nothing but the wheel is installed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

from tests import ROOT
from tests.packaging.environments import PACKAGES, Environment, distribution_of
from tests.patience import GUARD

ACTION = yaml.safe_load((ROOT / "examples/ci/action/action.yml").read_text("utf-8"))
INSTALL, DOCTOR, JUDGE, KEEP = ACTION["runs"]["steps"]
DOCKERFILE = (ROOT / "examples/ci/Dockerfile").read_text("utf-8")


def filled(text: str, **inputs: str) -> str:
    """A text of the action with its inputs, some of them given."""
    given = {name: each["default"] for name, each in ACTION["inputs"].items()} | inputs
    return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)


def test_the_action_judges_and_keeps_what_came_of_it(environment: Environment, tmp_path: Path) -> None:
    """Its steps, run as a runner does, with time enough: the doctor's findings, the summary, a page and records."""
    inputs = {"implementation": "reference", "backend": "gloo", "only": "parity"}
    summary = tmp_path / "summary.md"
    for step in (DOCTOR, JUDGE):
        variables = {name: filled(text, **inputs) for name, text in step["env"].items()}
        script = step["run"].replace("-conformance doctor", f"-conformance doctor --patience {GUARD:.0f}")
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        ended = environment.run(tmp_path, *words, **variables, GITHUB_STEP_SUMMARY=str(summary))
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "### reference" in summary.read_text("utf-8")
    kept = tmp_path / KEEP["with"]["path"]
    assert {path.name for path in kept.iterdir()} >= {"doctor.json", "summary.json", "page.html", "reference.jsonl"}
    assert json.loads((kept / "summary.json").read_text("utf-8"))


def test_no_input_is_part_of_a_script() -> None:
    """A branch or a name could hold commands."""
    assert [step["name"] for step in (INSTALL, DOCTOR, JUDGE) if "${{" in step["run"]] == []


def test_the_action_installs_what_the_wheel_needs_but_torch(environment: Environment) -> None:
    """torch is there already; pytest-xdist is an extra."""
    needed = (Requirement(each) for each in distribution_of(environment.site).requires or ())
    names = {each.name for each in needed if each.name != "torch" and not each.marker}
    assert set(INSTALL["run"].splitlines()[0].split()[5:]) == {*names, "pytest-xdist"}


def test_the_image_has_our_torch_and_all_that_the_wheel_is_made_of() -> None:
    """What .dockerignore lets through, and nothing that builds leave behind."""
    tox: Any = (ROOT / "tox.ini").read_text("utf-8")
    assert re.findall(r"torch==([\d.]+)", DOCKERFILE) == re.findall(r"TORCH_VERSION:([\d.]+)", tox)[:1]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    assert kept == {*PACKAGES, "LICENSE", "README.md", "pyproject.toml"}
