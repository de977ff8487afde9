"""What differs between two runs: the baseline (an earlier run, or one on CUDA), and the candidate.

Of five results that passed in the baseline::

    pass ─▶ fail         regressed         pass ─▶ (none)      lost: planned, and never written
    pass ─▶ waived       excused           pass ─▶ not run     no longer run
    pass ─▶ pass         the same

A difference counts against the candidate only where the baseline passed. A planned result that was never written is
not one that was skipped: ``missing`` equals no verdict. A ``Comparison`` is what ``compare --json`` prints, field by
field (docs/formats.md); the terminal and the page show the same object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from harness.data.kinds import LEVELS, StringEnum
from harness.data.text import one_line, plural, unique
from harness.records.reader import Run
from harness.records.record import Record, Verdict
from harness.records.standing import Standing, standing
from harness.run_comparison.matching import Key, Planned, matched

#: The end of a result that was planned and never written.
MISSING = "missing"
#: A ratio has drifted when it grew by this factor, and is above the least one: below that it is rounding.
DRIFT, LEAST_DRIFT = 2.0, 0.1


class Change(StringEnum):
    """What became of a result, in the order in which kinds of change are reported."""

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


#: What each kind of change is.
EXPLAINED = {
    Change.REGRESSED: "passed in the baseline",
    Change.LOST: "planned, and no result was written",
    Change.EXCUSED: "passed in the baseline, fails here under a waiver",
    Change.NO_LONGER_RUN: "tried in the baseline only",
    Change.NEWLY_RUN: "tried in the candidate only",
    Change.FIXED: "did not pass in the baseline",
    Change.CHANGED: "ended otherwise",
    Change.REMOVED: "results of the baseline's plan only",
    Change.ADDED: "results of the candidate's plan only",
}


class Side(Struct, frozen=True):
    """One of the two runs."""

    path: str
    sha256: str
    implementation: str
    backend: str
    started: str
    standing: Standing
    damage: list[str]


class Fact(Struct, frozen=True):
    """A version, an option or a part of the environment that is not the same; empty where one side lacks it."""

    name: str
    baseline: str
    candidate: str


class OneSided(Struct, frozen=True):
    """Names that only the candidate has, and names that only the baseline has."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


class Ratios(Struct, frozen=True):
    """Worst ÷ allowed of both sides; None where nothing was measured."""

    baseline: float | None
    candidate: float | None


class _Result(Struct, frozen=True):
    requirement: str
    world: str
    parameters: str

    @property
    def name(self) -> str:
        """``sharding/x in threads [wide]``."""
        return str(Key(self.requirement, self.world, self.parameters))


class RowChange(_Result, frozen=True):
    """One result that is not the same in both runs; ``counts`` says whether it is held against the candidate.

    ``baseline`` and ``candidate`` are verdicts, ``missing``, or None where a run has no such result. The message,
    cause and command are the candidate's.
    """

    level: str
    change: Change
    counts: bool
    baseline: str | None
    candidate: str | None
    nodeid: str
    message: str
    cause: str
    ratio: Ratios
    reproduce: str

    @property
    def why(self) -> str:
        """The first line of the message, unless it passes."""
        return one_line((self.message.splitlines() or [""])[0], 200) if self.candidate != Verdict.PASS else ""


class Drift(_Result, frozen=True):
    """A result that passes in both runs, and came nearer to its bound: worst ÷ allowed before and now."""

    baseline: float
    candidate: float
    where: str


class Comparison(Struct, frozen=True, tag_field="kind", tag="comparison"):
    """All of it. ``regressions`` is how many rows are held against the run; ``counts`` has the same ones, too.

    ``schema`` grows when a key changes its meaning or goes; a new key may come without. The largest drift is first.
    """

    schema: Literal[2]
    baseline: Side
    candidate: Side
    regressions: int
    counts: dict[Change, int]
    differs: list[Fact]
    claims: OneSided
    requirements: OneSided
    rows: list[RowChange]
    drift: list[Drift]

    def of(self, change: Change) -> list[RowChange]:
        """The rows of one kind, MUST first; of a requirement that is not known, last."""
        rows = [row for row in self.rows if row.change is change]
        return sorted(rows, key=lambda row: [*LEVELS, ""].index(row.level))

    @property
    def kinds(self) -> list[tuple[Change, str, list[RowChange]]]:
        """Each kind of change that there is, what it means, and its rows."""
        return [(change, said, rows) for change, said in EXPLAINED.items() if (rows := self.of(change))]

    @property
    def summary(self) -> str:
        """``4 results: 3 regressed, 1 the same. 3 regressions.``."""
        kinds = ", ".join(f"{count} {change}" for change, count in self.counts.items() if count)
        against = plural(self.regressions, "regression") if self.regressions else "No regression"
        return f"{plural(sum(self.counts.values()), 'result')}: {kinds or 'none'}. {against}."


Pairs = dict[Key, tuple[Planned | None, ...]]


def compare(a: Run, b: Run, drift: float = DRIFT) -> Comparison:
    """What differs between ``a``, the baseline, and ``b``, the candidate."""
    pairs: Pairs = matched((a, b))
    rows = [_row(key, was, now) for key, (was, now) in pairs.items()]
    found = Counter(row.change for row in rows)
    return Comparison(
        schema=2,
        baseline=_side(a),
        candidate=_side(b),
        regressions=sum(row.counts for row in rows),
        counts={change: found[change] for change in Change},
        differs=[fact for fact in _facts(a, b) if fact.baseline != fact.candidate],
        claims=_one_sided(a.header.claims, b.header.claims),
        requirements=_one_sided(*(_requirements(pairs, side) for side in (0, 1))),
        rows=[row for row in rows if row.change is not Change.SAME],
        drift=sorted(_drifted(pairs, drift), key=lambda one: -one.candidate),
    )


def _row(key: Key, was: Planned | None, now: Planned | None) -> RowChange:
    change = _change(was, now)
    before, after = was.record if was else None, now.record if now else None
    known = after or before
    return RowChange(
        requirement=key.requirement,
        world=key.world,
        parameters=key.parameters,
        level=known.level if known else "",
        change=change,
        counts=before is not None and before.passed and change in (Change.REGRESSED, Change.LOST),
        baseline=_end(was),
        candidate=_end(now),
        nodeid=(now or was or Planned("", None)).nodeid,
        message=after.message if after else "",
        cause=after.cause if after else "",
        ratio=Ratios(before.ratio if before else None, after.ratio if after else None),
        reproduce=after.reproduce if after else "",
    )


def _end(row: Planned | None) -> str | None:
    if row is None:
        return None
    return str(row.record.verdict) if row.record else MISSING


def _change(was: Planned | None, now: Planned | None) -> Change:
    if was is None or now is None:
        return Change.ADDED if was is None else Change.REMOVED
    if _end(was) == _end(now) and (not was.record or not now.record or was.record.passed == now.record.passed):
        return Change.SAME
    if now.record is None:
        return Change.LOST
    if not now.record.was_tried:
        return Change.NO_LONGER_RUN if was.record and was.record.was_tried else Change.CHANGED
    if was.record is None or not was.record.was_tried:
        return Change.NEWLY_RUN
    return _of_tried(was.record, now.record)


def _of_tried(was: Record, now: Record) -> Change:
    """What became of a result that was tried in both runs, and ended differently."""
    if was.passed and not now.passed:
        return Change.EXCUSED if now.verdict is Verdict.WAIVED else Change.REGRESSED
    return Change.FIXED if now.passed and not was.passed else Change.CHANGED


def _requirements(pairs: Pairs, side: int) -> tuple[str, ...]:
    return unique(key.requirement for key, pair in pairs.items() if key.requirement and pair[side])


def _one_sided(baseline: Iterable[str], candidate: Iterable[str]) -> OneSided:
    before, after = dict.fromkeys(baseline), dict.fromkeys(candidate)
    return OneSided(tuple(name for name in after if name not in before), tuple(n for n in before if n not in after))


def _side(run: Run) -> Side:
    header = run.header
    names = (str(run.path), run.sha256, header.implementation, header.backend, header.started)
    return Side(*names, standing(run), run.damage)


def _facts(a: Run, b: Run) -> Iterator[Fact]:
    """Who was judged, on what, by which suite and how; then the environment, in the order in which it is recorded."""
    for name in ("implementation", "backend", "suite_version", "profile", "level", "seed"):
        yield Fact(name.replace("_", " "), getattr(a.header, name), getattr(b.header, name))
    yield Fact("worlds", ", ".join(a.header.worlds), ", ".join(b.header.worlds))
    for name in unique([*a.header.environment, *b.header.environment]):
        yield Fact(name, a.header.environment.get(name, ""), b.header.environment.get(name, ""))


def _drifted(pairs: Pairs, factor: float) -> Iterator[Drift]:
    for key, (was, now) in pairs.items():
        if was and now and was.record and now.record and was.record.passed and now.record.passed:
            before, after = was.record.ratio, now.record.ratio
            if before is not None and after is not None and after > LEAST_DRIFT and after >= factor * before:
                yield Drift(key.requirement, key.world, key.parameters, before, after, now.record.worst)
