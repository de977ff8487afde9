"""The table of requirements: a row a requirement, and for each run a cell a world, to read runs side by side.

Two runs of one requirement in two worlds become one ``RequirementRow`` with two ``Side``s of two ``Cell``s each::

                       torch on gloo           my_fsdp on gloo
                       threads   processes     threads   processes
    sharding/layout    pass      pass          fail      pass         differs
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.data.text import plural, ratio_text, seconds_text, unique
from harness.records.record import Record, Verdict
from harness.records.standing import PART_OF, Part, is_waived, severity, worst_of

#: How many requirements of a chapter show while it is folded: those that fail or are unproven.
MOST_UNFOLDED = 10


@dataclass(frozen=True)
class Column:
    """What the table needs of one run: its results, its worlds, and where the page has more on a result, by node id."""

    records: Sequence[Record]
    worlds: tuple[str, ...]
    hrefs: Mapping[str, str]


@dataclass(frozen=True)
class Ratio:
    """Worst ÷ allowed as text and as a meter: ``filled`` is 0 to 100.

    It is beyond the bound if it is ``over``, which is a failure, or ``waived``.
    """

    text: str
    filled: float
    over: bool
    waived: bool
    where: str


@dataclass(frozen=True)
class Cell:
    """One requirement in one world of one run; ``note`` counts the results behind it when there are several."""

    verdict: Verdict
    note: str
    href: str


@dataclass(frozen=True)
class Side:
    """One requirement in one run: a cell a world (None where nothing was written), and what it took, if tried."""

    cells: tuple[Cell | None, ...]
    tried: bool
    ratio: Ratio | None
    checks: int
    examples: int
    sizes: str
    took: str


@dataclass(frozen=True)
class RequirementRow:
    """One requirement across all runs; ``level``, ``ends`` and ``differs`` are what the filter looks at.

    ``ends`` has for each result its world, by its place in ``worlds_of``, and its part, as in ``"0:pass 1:fail"``.
    ``folds`` is whether it is hidden while its chapter is folded: it neither fails nor is unproven, or many before do.
    """

    anchor: str
    requirement: str
    statement: str
    level: str
    ends: str
    folds: bool
    differs: bool
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Chapter:
    """Requirements that belong together, in the order they ran."""

    anchor: str
    name: str
    summary: str
    rows: tuple[RequirementRow, ...]


def chapters_of(columns: Sequence[Column]) -> tuple[Chapter, ...]:
    """The whole table: chapters and requirements in the order in which the runs came upon them."""
    found: dict[str, dict[str, list[list[Record]]]] = {}
    for number, column in enumerate(columns):
        for record in column.records:
            sides = found.setdefault(record.chapter, {}).setdefault(record.requirement, [[] for _ in columns])
            sides[number].append(record)
    return tuple(_chapter(name, list(rows.values()), columns) for name, rows in found.items())


def worlds_of(columns: Iterable[Column]) -> tuple[str, ...]:
    """The worlds of all runs."""
    return unique(world for column in columns for world in column.worlds)


def anchor_of(requirement: str) -> str:
    """Where on the page a requirement stands."""
    return "req-" + re.sub(r"[^A-Za-z0-9]+", "-", requirement).strip("-")


def chapter_anchor(name: str) -> str:
    """Where on the page a chapter's requirements stand."""
    return "chapter-" + re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def _chapter(name: str, found: list[list[list[Record]]], columns: Sequence[Column]) -> Chapter:
    rows = [_row(sides, columns) for sides in found]
    beyond = [place for place, row in enumerate(rows) if not row.folds][MOST_UNFOLDED:]
    for place in beyond:
        rows[place] = replace(rows[place], folds=True)
    red = sum(record.verdict.is_red for sides in found for side in sides for record in side)
    counted = plural(len(rows), "requirement") + (f", {red} failing" if red else "")
    return Chapter(chapter_anchor(name), name, counted, tuple(rows))


def _row(sides: list[list[Record]], columns: Sequence[Column]) -> RequirementRow:
    records = [record for side in sides for record in side]
    first, worlds = records[0], worlds_of(columns)
    return RequirementRow(
        anchor=anchor_of(first.requirement),
        requirement=first.requirement,
        statement=first.statement,
        level=first.level,
        ends=" ".join(unique(f"{worlds.index(r.world)}:{PART_OF[r.verdict].name.lower()}" for r in records)),
        folds=not any(PART_OF[record.verdict] in (Part.FAIL, Part.UNPROVEN) for record in records),
        differs=_differs(sides, columns),
        sides=tuple(_side(side, column) for side, column in zip(sides, columns, strict=True)),
    )


def _differs(sides: list[list[Record]], columns: Sequence[Column]) -> bool:
    """Whether two runs came to different verdicts in a world that all runs have, or only one of them has the result."""
    common = sorted(set.intersection(*(set(column.worlds) for column in columns)))
    ends = {(bool(side), *(_verdict(_in_world(side, world)) for world in common)) for side in sides}
    return len(ends) > 1


def _in_world(records: list[Record], world: str) -> list[Record]:
    return [record for record in records if record.world == world]


def _verdict(records: list[Record]) -> Verdict | None:
    return worst_of(record.verdict for record in records) if records else None


def _side(records: list[Record], column: Column) -> Side:
    sizes = sorted({size for record in records for size in record.world_sizes})
    return Side(
        cells=tuple(_cell(_in_world(records, world), column.hrefs) for world in column.worlds),
        tried=any(record.was_tried for record in records),
        ratio=_ratio(records),
        checks=sum(record.checks for record in records),
        examples=sum(record.examples for record in records),
        sizes=", ".join(map(str, sizes)),
        took=seconds_text(sum(record.seconds for record in records)),
    )


def _cell(records: list[Record], hrefs: Mapping[str, str]) -> Cell | None:
    verdict = _verdict(records)
    if verdict is None:
        return None
    same = [record for record in records if record.verdict is verdict]
    note = "" if len(records) == 1 else f"{len(same)} of {len(records)}"
    return Cell(verdict, note, hrefs.get(same[0].nodeid, ""))


def _ratio(records: list[Record]) -> Ratio | None:
    """The worst ratio of a requirement."""
    measured = [(record.ratio, record) for record in records if record.ratio is not None]
    if not measured:
        return None
    ratio, record = max(measured, key=lambda pair: severity(pair[0], pair[1].verdict))
    excused = is_waived(ratio, record.verdict)
    filled = round(100 * min(max(ratio, 0.0), 1.0), 1)
    return Ratio(ratio_text(ratio), filled, ratio > 1 and not excused, excused, record.worst)
