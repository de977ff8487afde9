"""docs/faults.md says which mutants reproduce which published defect, and what kills them, and all of it is true."""

from __future__ import annotations

import re
from dataclasses import dataclass

from suites.catalogue import entries
from tests import ROOT
from tests.mutants import all_mutants

TABLE = ROOT / "docs" / "faults.md"
MUTANTS = {mutant.id: mutant for mutant in all_mutants()}
ROW = re.compile(r"[A-K]\d+")


@dataclass(frozen=True)
class Row:
    """One line of the table: a defect, the mutants that reproduce it, and what kills them or why there is none."""

    id: str
    origin: str
    defect: str
    mutants: tuple[str, ...]
    killed_by: str


def rows() -> list[Row]:
    """All lines of all tables."""
    lines = [line.strip("|\n").split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    found = [[cell.strip() for cell in cells] for cells in lines if ROW.fullmatch(cells[0].strip())]
    return [Row(row, origin, defect, ticked(mutants), killed_by) for row, origin, defect, mutants, killed_by in found]


def ticked(cell: str) -> tuple[str, ...]:
    """What stands between backticks."""
    return tuple(re.findall(r"`([^`]+)`", cell))


def test_each_defect_has_one_row_an_origin_and_some_words() -> None:
    """No row is there twice or empty."""
    assert len({row.id for row in rows()}) == len(rows()) > 100
    assert [row.id for row in rows() if not re.fullmatch(r"[\w.-]+/[\w.-]+[#@]\w+", row.origin)] == []
    assert [row.id for row in rows() if len(row.defect) < 10] == []


def test_each_row_says_what_kills_its_mutants() -> None:
    """The mutants exist, and the requirements are those named for them."""
    for row in rows():
        if row.mutants:
            assert set(ticked(row.killed_by)) == {MUTANTS[mutant].killed_by for mutant in row.mutants}, row


def test_each_row_without_a_mutant_says_why() -> None:
    """In a sentence; requirements that it names exist."""
    known = {entry.requirement.id for entry in entries()}
    for row in rows():
        if not row.mutants:
            assert len(row.killed_by) > 40, row
            assert {name for name in ticked(row.killed_by) if re.fullmatch(r"[a-z-]+/[a-z-]+", name)} <= known, row


def test_every_module_of_mutants_is_in_the_table_of_places() -> None:
    """Once each."""
    places = TABLE.read_text(encoding="utf-8").partition("## Where defects are injected")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[2] for line in places.splitlines() if line.startswith("|")))
    assert sorted(named) == sorted({mutant.partition(".")[0] for mutant in MUTANTS})


def test_no_two_mutants_have_the_same_id() -> None:
    """An id names one mutant, of at least 120."""
    assert len(MUTANTS) == len(all_mutants()) >= 120
