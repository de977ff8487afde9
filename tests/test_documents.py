"""The tables in the docs are those of the suites as they stand."""

from __future__ import annotations

import re
from pathlib import Path

from suites.catalogue import by_seed, requirements

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_table_of_requirements_is_fresh() -> None:
    """docs/requirements.md is what `python -m suites.catalogue requirements` prints now."""
    assert (DOCS / "requirements.md").read_text(encoding="utf-8").splitlines() == list(requirements())


def test_every_seed_row_is_required() -> None:
    """No seed row is without a requirement."""
    assert [row for row, members in by_seed().items() if not members] == []


def test_the_table_of_seed_rows_names_their_requirements() -> None:
    """docs/seed-coverage.md has every seed row with the ids of its requirements, and no failure."""
    table = (DOCS / "seed-coverage.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(): cells for line in table.splitlines() if len(cells := line.split("|")) > 5}
    for row, members in by_seed().items():
        assert re.findall(r"`([^`]+)`", rows[row][3]) == [member.id for member in members]
        assert "fail" not in "".join(rows[row][4:])
        assert "not there" not in "".join(rows[row][4:])
