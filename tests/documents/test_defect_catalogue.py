"""docs/faults.md says which faulty subjects stand for which defect that was shipped, and all of it is so."""

from __future__ import annotations

import re
from dataclasses import dataclass

from suites.catalogue import entries
from tests import ROOT
from tests.mutants import all_faults

TABLE = ROOT / "docs" / "faults.md"
FAULTS = {fault.id: fault for fault in all_faults()}
ROW = re.compile(r"[A-K]\d+")
ORIGIN = re.compile(rf"({ROW.pattern}(?:, {ROW.pattern})*) \S")


@dataclass(frozen=True)
class Row:
    """One line of the table: a defect, the ids of the subjects that have it, and what is said of them."""

    id: str
    origin: str
    defect: str
    subjects: tuple[str, ...]
    caught_by: str


def rows() -> list[Row]:
    """All lines of all tables."""
    lines = [line.strip("|\n").split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    found = [[cell.strip() for cell in cells] for cells in lines if ROW.fullmatch(cells[0].strip())]
    return [Row(row, origin, defect, ticked(subjects), caught) for row, origin, defect, subjects, caught in found]


def ticked(cell: str) -> tuple[str, ...]:
    """What stands between backticks."""
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows_of(origin: str) -> list[str]:
    """The rows that an origin says it is: A1 and A3 of ``"A1, A3 pytorch/pytorch#162338"``."""
    found = ORIGIN.match(origin)
    return found[1].split(", ") if found else []


def test_each_defect_has_one_row_an_origin_and_some_words() -> None:
    """No row is there twice or says nothing."""
    assert len({row.id for row in rows()}) == len(rows()) > 100
    assert [row.id for row in rows() if not re.fullmatch(r"[\w.-]+/[\w.-]+[#@]\w+", row.origin)] == []
    assert [row.id for row in rows() if len(row.defect) < 10] == []


def test_each_row_names_the_subjects_that_have_its_defect() -> None:
    """In both directions: what the table names is there and says so, and what says so is named."""
    named = {(row.id, subject) for row in rows() for subject in row.subjects}
    assert named == {(row, fault.id) for fault in FAULTS.values() for row in rows_of(fault.origin)}


def test_each_row_says_what_catches_its_subjects() -> None:
    """The requirements named are those of the subjects."""
    for row in rows():
        if row.subjects:
            assert set(ticked(row.caught_by)) == {FAULTS[subject].caught_by for subject in row.subjects}, row


def test_each_row_without_a_subject_says_why() -> None:
    """In a sentence; requirements that it names are there."""
    known = {entry.requirement.id for entry in entries()}
    for row in rows():
        if not row.subjects:
            assert len(row.caught_by) > 40, row
            assert {name for name in ticked(row.caught_by) if re.fullmatch(r"[a-z-]+/[a-z-]+", name)} <= known, row


def test_every_module_of_faults_is_said_to_be_injected_somewhere() -> None:
    """In one place each."""
    places = TABLE.read_text(encoding="utf-8").partition("## Where faults are injected")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[2] for line in places.splitlines() if line.startswith("|")))
    assert sorted(named) == sorted({fault.id.partition(".")[0] for fault in FAULTS.values()})


def test_there_are_at_least_120_faulty_subjects() -> None:
    """And no two of one name."""
    assert len(FAULTS) == len(all_faults()) >= 120
