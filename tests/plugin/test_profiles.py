"""How cases are drawn: the same ones each time, or by a seed that records keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from harness.records.reader import Run
from tests.plugin.test_plugin import samples_run

DRAWS = ("-k", "test_small_numbers or every_number", "--world", "threads")


def drawn(there: Path, *options: str) -> Run:
    """The samples that draw cases, run with these options."""
    there.mkdir()
    return samples_run(there, *DRAWS, *options)[1]


def results_of(run: Run) -> dict[str, Any]:
    """Each verdict, number of examples, and case."""
    return {record.nodeid: (record.verdict, record.examples, record.case) for record in run.records}


def seed_of(run: Run) -> str:
    """The seed in the header of a run."""
    return run.header.seed


def test_a_soak_run_has_a_seed_of_its_own_and_can_be_had_again(tmp_path: Path) -> None:
    """Without a given seed, soak chooses a seed for all workers and records it; given that one, it draws the same."""
    first = drawn(tmp_path / "first", "--hypothesis-profile", "soak", "--numprocesses", "2")
    assert seed_of(first).isdigit()
    again = drawn(tmp_path / "again", "--hypothesis-profile", "soak", "--hypothesis-seed", seed_of(first))
    assert seed_of(again) == seed_of(first)
    assert results_of(again) == results_of(first)
    assert len(results_of(first)) == 2


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_other_profiles_draw_the_same_each_time(profile: str) -> None:
    """What is derandomized needs no seed."""
    assert settings.get_profile(profile).derandomize
