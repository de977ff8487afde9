"""What differs between two runs: the reference side (an earlier run, or one on CUDA), and the run under question.

Of five rows that passed in the reference::

    pass ─▶ fail         regressed         pass ─▶ (no row)    lost: planned, and never written
    pass ─▶ waived       excused           pass ─▶ not run     no longer run
    pass ─▶ pass         the same

A disagreement counts against the run only where the reference side passed. A planned row that was never written is not
a row that was skipped: ``missing`` equals no verdict. Plain data to plain data; ``report_text.py`` writes it down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from harness.data.kinds import LEVELS
from harness.data.text import unique
from harness.records.reader import Run
from harness.records.record import Record, Verdict
from harness.records.standing import Standing, standing
from harness.run_comparison.matching import Key, Planned, matched

#: The end of a row that was planned and never written.
MISSING = "missing"
#: A ratio has drifted when it grew by this factor, and is above the least one: below that it is rounding.
DRIFT, LEAST_DRIFT = 2.0, 0.1


class Change(str, Enum):
    """What became of a row. The order is that in which a person wants to hear of it."""

    REGRESSED = "regressed"
    LOST = "lost"
    EXCUSED = "excused"
    NO_LONGER_RUN = "no longer run"
    NEWLY_RUN = "newly run"
    FIXED = "fixed"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"
    SAME = "the same"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class RowChange:
    """One row in both runs. ``was`` and ``now`` are verdicts, ``missing``, or empty where a run has no such row.

    ``counts`` says whether it is held against the run. Records are there to be shown; None where none was written.
    """

    key: Key
    change: Change
    was: str
    now: str
    counts: bool
    nodeid: str
    reference: Record | None
    record: Record | None

    @property
    def level(self) -> str:
        """The level of the requirement, as the run under question has it, or else the reference; empty if unknown."""
        known = self.record or self.reference
        return known.level if known else ""


@dataclass(frozen=True)
class Fact:
    """A version, an option or a part of the environment that is not the same; empty where one side lacks it."""

    name: str
    reference: str
    run: str


@dataclass(frozen=True)
class Drift:
    """A row that passes in both runs, and came nearer to its bound: worst ÷ allowed before and now."""

    key: Key
    reference: float
    run: float
    where: str


@dataclass(frozen=True)
class Party:
    """One side of the comparison."""

    path: str
    sha256: str
    implementation: str
    backend: str
    started: str
    standing: Standing
    damage: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All of it. ``added`` and ``removed`` are requirements of one run only; claims are those of one run only."""

    reference: Party
    run: Party
    facts: tuple[Fact, ...]
    claims_added: tuple[str, ...]
    claims_removed: tuple[str, ...]
    rows: tuple[RowChange, ...]
    drift: tuple[Drift, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def regressions(self) -> tuple[RowChange, ...]:
        """The rows that are held against the run."""
        return tuple(row for row in self.rows if row.counts)

    def of(self, change: Change) -> tuple[RowChange, ...]:
        """The rows of one kind, MUST first."""
        return tuple(sorted((row for row in self.rows if row.change is change), key=_by_level))

    def counts(self) -> dict[Change, int]:
        """How many rows there are of each kind."""
        found = Counter(row.change for row in self.rows)
        return {change: found[change] for change in Change}


def compare(a: Run, b: Run, drift: float = DRIFT) -> Comparison:
    """What differs between ``a``, the reference side, and ``b``, the run under question."""
    rows = tuple(_row(key, was, now) for key, (was, now) in matched((a, b)).items())
    before, after = _requirements(rows, "was"), _requirements(rows, "now")
    return Comparison(
        reference=_party(a),
        run=_party(b),
        facts=tuple(Fact(name, was, now) for name, was, now in _facts(a, b) if was != now),
        claims_added=tuple(claim for claim in unique(b.header.claims) if claim not in set(a.header.claims)),
        claims_removed=tuple(claim for claim in unique(a.header.claims) if claim not in set(b.header.claims)),
        rows=rows,
        drift=tuple(_drifted(rows, drift)),
        added=tuple(requirement for requirement in after if requirement not in before),
        removed=tuple(requirement for requirement in before if requirement not in after),
    )


def passed(record: Record) -> bool:
    """Whether the subject did what is required; a stale waiver without a cause of failure is of a row that passes."""
    return record.verdict is Verdict.PASS or (record.verdict is Verdict.STALE_WAIVER and not record.cause)


def failed(record: Record) -> bool:
    """Whether the subject did not do what is required, waived or not."""
    return record.verdict in (Verdict.FAIL, Verdict.WAIVED, Verdict.STALE_WAIVER) and not passed(record)


def _row(key: Key, was: Planned | None, now: Planned | None) -> RowChange:
    change = _change(was, now)
    before = was.record if was else None
    counts = before is not None and passed(before) and change in (Change.REGRESSED, Change.LOST)
    nodeid = (now or was or Planned("", None)).nodeid
    return RowChange(key, change, _end(was), _end(now), counts, nodeid, before, now.record if now else None)


def _end(row: Planned | None) -> str:
    if row is None:
        return ""
    return str(row.record.verdict) if row.record else MISSING


def _change(was: Planned | None, now: Planned | None) -> Change:
    if was is None or now is None:
        return Change.ADDED if was is None else Change.REMOVED
    if _end(was) == _end(now) and (not was.record or not now.record or passed(was.record) == passed(now.record)):
        return Change.SAME
    if now.record is None:
        return Change.LOST
    if not _tried(now.record):
        return Change.NO_LONGER_RUN if was.record and _tried(was.record) else Change.CHANGED
    if was.record is None or not _tried(was.record):
        return Change.NEWLY_RUN
    return _of_tried(was.record, now.record)


def _of_tried(was: Record, now: Record) -> Change:
    """What became of a row that was tried in both runs, and ended differently."""
    if passed(was) and not passed(now):
        return Change.EXCUSED if now.verdict is Verdict.WAIVED else Change.REGRESSED
    return Change.FIXED if passed(now) and not passed(was) else Change.CHANGED


def _tried(record: Record) -> bool:
    return record.verdict not in (Verdict.NOT_CLAIMED, Verdict.NOT_RUN)


def _by_level(row: RowChange) -> int:
    return LEVELS.index(row.level) if row.level in LEVELS else len(LEVELS)


def _requirements(rows: Iterable[RowChange], side: str) -> dict[str, None]:
    return dict.fromkeys(row.key.requirement for row in rows if row.key.requirement and getattr(row, side))


def _party(run: Run) -> Party:
    header = run.header
    names = (str(run.path), run.sha256, header.implementation, header.backend, header.started)
    return Party(*names, standing(run), tuple(run.damage))


def _facts(a: Run, b: Run) -> Iterator[tuple[str, str, str]]:
    """Who was judged, on what, by which suite and how; then the environment, in the order in which it is recorded."""
    for name in ("implementation", "backend", "suite_version", "profile", "level", "seed"):
        yield name.replace("_", " "), getattr(a.header, name), getattr(b.header, name)
    yield "worlds", ", ".join(a.header.worlds), ", ".join(b.header.worlds)
    for name in unique([*a.header.environment, *b.header.environment]):
        yield name, a.header.environment.get(name, ""), b.header.environment.get(name, "")


def _drifted(rows: Iterable[RowChange], factor: float) -> Iterator[Drift]:
    for row in rows:
        was, now = row.reference, row.record
        if was is None or now is None or was.ratio is None or now.ratio is None:
            continue
        both = passed(was) and passed(now) and math.isfinite(was.ratio) and math.isfinite(now.ratio)
        if both and now.ratio > LEAST_DRIFT and now.ratio >= factor * was.ratio:
            yield Drift(row.key, was.ratio, now.ratio, now.worst)
