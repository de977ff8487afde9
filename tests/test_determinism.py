"""Two runs of the same suite on the same subject give the same records, but for times and the paths they were given.

Processes run side by side: whether a rank had just returned or was interrupted when another one failed is a matter of
time, and is left out there. In the thread world even that repeats.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.report.read import read_run
from harness.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
ROWS = ["suites/test_training_parity.py", "tests/plugin_samples.py::test_every_number_is_fine"]
TIMES = ("seconds", "started", "finished", "command")


def facts_of_a_run(record: Path, hash_seed: int) -> list[dict[str, Any]]:
    """Everything that one run wrote, without times and paths. Python's own hashes differ from run to run."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ROWS, "--backend", "gloo"]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    subprocess.run([*command, "--record", str(record)], cwd=ROOT, env=environment, capture_output=True, check=False)
    run = read_run(record)
    assert run.footer is not None
    return [without_times(line.as_json()) for line in (run.header, *run.records, run.footer)]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """One line of a record file, without what may differ."""
    kept = {key: value for key, value in line.items() if key not in TIMES}
    for rank in kept.get("ranks", ()):
        del rank["log"]  # what libraries print has times of their own
    if kept.get("world") == "processes":
        kept["message"] = kept["message"].partition("\n")[0]
        kept["ranks"] = [rank for rank in kept["ranks"] if rank["fate"] not in ("returned", "interrupted")]
    return kept


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same thing, twice."""
    there = tmp_path_factory.mktemp("determinism")
    return facts_of_a_run(there / "one.jsonl", 1), facts_of_a_run(there / "two.jsonl", 2)


@pytest.mark.parametrize("world", ["threads", "processes"])
def test_two_runs_have_the_same_rows(two_runs: tuple[list[dict[str, Any]], list[dict[str, Any]]], world: str) -> None:
    """In each world: the same cases, ratios to the last bit, verdicts, smallest failing cases, messages and stacks."""
    one, two = ([line for line in run if line.get("world") == world] for run in two_runs)
    assert one == two
    assert {line["verdict"] for line in one} == {Verdict.PASS, Verdict.FAIL}
    assert all(line["examples"] > 1 for line in one)
    assert any(0 < ratio < 1 for line in one for ratio in line["ratios"].values())


def test_two_runs_have_the_same_header_and_footer(two_runs: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """The plan, the environment and the end are the same too."""
    one, two = two_runs
    assert (one[0], one[-1]) == (two[0], two[-1])
