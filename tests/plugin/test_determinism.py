"""Two runs of the same suite on the same subject give the same records, but for times and the paths they were given.

What may differ all the same is in ``rerun.py``, whose command does this with more results and more often.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.records.record import Verdict
from tests.plugin.rerun import differing, lines_of, run

ARGUMENTS = [
    "suites/training/test_training_parity.py::test_training_follows_the_unsharded_model",
    "tests/plugin/samples.py::test_every_number_is_fine",
    "--backend",
    "gloo",
]
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lines, Lines]:
    """The same thing, twice, with Python's own hashes in another order."""
    there = tmp_path_factory.mktemp("determinism")
    return lines_of(run(there / "one.jsonl", ARGUMENTS, 1)), lines_of(run(there / "two.jsonl", ARGUMENTS, 2))


@pytest.mark.parametrize("world", ["threads", "processes"])
def test_two_runs_have_the_same_results(two_runs: tuple[Lines, Lines], world: str) -> None:
    """In each world: the same cases, ratios to the last bit, verdicts, smallest failing cases, messages and stacks."""
    one, two = ([line for line in lines if line.get("world") == world] for lines in two_runs)
    assert one == two
    assert {line["verdict"] for line in one} == {Verdict.PASS, Verdict.FAIL}
    assert all(line["examples"] > 1 for line in one)
    assert any(0 < ratio < 1 for line in one for ratio in line["ratios"].values())


def test_two_runs_have_the_same_header_and_footer(two_runs: tuple[Lines, Lines]) -> None:
    """The plan, the environment and the end are the same too."""
    one, two = two_runs
    assert (one[0], one[-1]) == (two[0], two[-1])


def test_what_differs_is_named(two_runs: tuple[Lines, Lines]) -> None:
    """Of runs that differ in one result and in the header, both are named, and of runs that are the same nothing."""
    one, two = two_runs
    changed = [{**two[0], "seed": "7"}, {**two[1], "examples": -1}, *two[2:]]
    assert differing([one, two]) == []
    assert differing([one, two, changed]) == sorted(["header", two[1]["nodeid"]])
