"""The kill table that is published says what was measured, of all faults there are, and keeps to its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import all_faults
from tests.mutation.measure import ROOT, with_what_is_said
from tests.mutation.run import FACTS, made_of, read
from tests.mutation.table import SOON, figures

FAULTS = all_faults()
MEASURED = read(FACTS)
AGAIN = "run `python -m tests.mutants --missing`"


def test_every_fault_is_measured() -> None:
    """The table has each fault of the library, alone and in a run, and none that is no more."""
    assert sorted(MEASURED) == sorted(fault.id for fault in FAULTS), AGAIN
    assert [id for id, fact in MEASURED.items() if fact["run_rows"] is None and not fact["equivalent"]] == [], AGAIN


def test_what_is_said_of_each_fault_is_what_the_library_says() -> None:
    """Origin, requirement named, and who is right to catch it are today's."""
    for fault in FAULTS:
        assert MEASURED[fault.id] == with_what_is_said(fault, MEASURED[fault.id]), f"{fault.id}: {AGAIN}"


@pytest.mark.parametrize("path", made_of(list(MEASURED.values()), len(FAULTS)), ids=lambda path: path.name)
def test_what_is_made_of_the_facts_is_fresh(path: Path) -> None:
    """The table and its pictures are made of the facts that are published."""
    assert path.read_text(encoding="utf-8") == made_of(list(MEASURED.values()), len(FAULTS))[path], AGAIN


def test_every_fault_is_caught_or_can_be_told_from_right_by_nobody() -> None:
    """Caught is: a named requirement says fail, of the subject, and not by a hang unless that is the symptom."""
    left = [id for id, fact in MEASURED.items() if not fact["killed"] and not fact["why_equivalent"]]
    assert left == []


def test_the_figures_are_kept() -> None:
    """Most faults are first caught by a requirement that is right to, within a minute, and alone in a second or two."""
    found = figures(list(MEASURED.values()))
    assert found["attributed"] >= 0.95 * found["in a run"]
    assert found["within a minute"] >= 0.9 * found["in a run"]
    assert found["median seconds alone"] <= SOON


def test_the_readme_shows_the_badge_and_the_page() -> None:
    """Who reads what this is sees what it catches."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/pictures/detection-badge.svg" in readme
    assert "docs/detection.md" in readme
