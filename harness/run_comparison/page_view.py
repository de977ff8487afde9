"""The comparison of two runs as the page shows it: the first is the reference side, the second the run in question.

A disagreement counts only where the reference side passed; what else is not the same is told, and does not count::

    pass → fail      regressed, counts            fail → fail      the same
    pass → pass      the same                     not run → fail   newly run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.data.text import one_line, plural, ratio_text
from harness.records.reader import Run
from harness.run_comparison.difference import Change, Comparison, Fact, RowChange, compare
from harness.run_comparison.report_text import EXPLAINED

#: How many rows of one kind, and how many that came nearer to their bounds, are shown.
MOST_ROWS, MOST_DRIFT = 200, 20


@dataclass(frozen=True)
class Changed:
    """One row that is not the same: what it was and is, why, and where the page tells more."""

    name: str
    level: str
    was: str
    now: str
    why: str
    href: str


@dataclass(frozen=True)
class Kind:
    """Rows that changed in one way; ``left_out`` of them are not shown."""

    change: Change
    said: str
    count: int
    rows: tuple[Changed, ...]
    left_out: int


@dataclass(frozen=True)
class Contrast:
    """All of it: the sentence above, what differs around the rows, kinds of change, and what drifted."""

    said: str
    counts: bool
    facts: tuple[Fact, ...]
    claims: tuple[tuple[str, str], ...]
    kinds: tuple[Kind, ...]
    drift: tuple[tuple[str, str, str], ...]


def contrast_of(reference: Run, run: Run, hrefs: Mapping[str, str]) -> Contrast:
    """What differs; ``hrefs`` says by node id where the page tells more of a row of ``run``."""
    found = compare(reference, run)
    kinds = (_kind(change, found.of(change), hrefs) for change in EXPLAINED)
    nearest = sorted(found.drift, key=lambda drift: -drift.run)[:MOST_DRIFT]
    return Contrast(
        said=_said(found),
        counts=bool(found.regressions),
        facts=found.facts,
        claims=tuple(_claims(found)),
        kinds=tuple(kind for kind in kinds if kind.count),
        drift=tuple((str(one.key), ratio_text(one.reference), ratio_text(one.run)) for one in nearest),
    )


def _said(found: Comparison) -> str:
    same = found.counts()[Change.SAME]
    against = plural(len(found.regressions), "result") if found.regressions else "no result"
    holds = "is" if len(found.regressions) == 1 else "are" if found.regressions else "is"
    every = plural(len(found.rows), "result")
    return f"{every} in both together, {same} the same; {against} {holds} held against the run"


def _claims(found: Comparison) -> list[tuple[str, str]]:
    both = (("of the reference only", found.claims_removed), ("of this run only", found.claims_added))
    return [(who, ", ".join(names)) for who, names in both if names]


def _kind(change: Change, rows: Sequence[RowChange], hrefs: Mapping[str, str]) -> Kind:
    shown = tuple(_changed(row, hrefs) for row in rows[:MOST_ROWS])
    return Kind(change, EXPLAINED[change], len(rows), shown, len(rows) - len(shown))


def _changed(row: RowChange, hrefs: Mapping[str, str]) -> Changed:
    message = row.record.message if row.record and row.now != "pass" else ""
    why = one_line((message.splitlines() or [""])[0], 200)
    return Changed(
        str(row.key), row.level, row.was or "no result", row.now or "no result", why, hrefs.get(row.nodeid, "")
    )
