"""What the page shows, as plain values: no HTML here, and no thinking in the template.

For each run: its standing, its bars, a ``Card`` a red row, and why rows were not tried or are excused. For all runs
together: the table of ``grid.py``, and what differs between the environments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.grid import Chapter, Column, anchor_of, chapters_of, tried
from harness.report.heat import HeatMap, heat_map
from harness.report.read import Run, missing
from harness.report.spread import Lane, lanes_of
from harness.report.summary import Standing, Tally, standing, tallies
from harness.report.text import clipped, days_left, json_text, moment_text, plural, seconds_text, unique
from harness.verdict import LEVELS, Record, Verdict


@dataclass(frozen=True)
class RankEnd:
    """What became of one rank."""

    rank: str
    fate: str
    error: str
    traceback: str
    log: str


@dataclass(frozen=True)
class Differs:
    """One comparison that failed: whose, where, what came, what was expected; by how much, in words."""

    where: str
    path: str
    got: str
    want: str
    much: str


@dataclass(frozen=True)
class Card:
    """One red row, with all a person needs to see it again."""

    anchor: str
    record: Record
    message: str
    case: str
    differences: tuple[Differs, ...]
    ranks: tuple[RankEnd, ...]

    @property
    def all_returned(self) -> bool:
        """Whether there is nothing to tell of any rank but that it returned."""
        return all((e.fate, e.error, e.traceback, e.log) == ("returned", "", "", "") for e in self.ranks)


@dataclass(frozen=True)
class Reason:
    """Why a requirement was not tried, in the worlds named."""

    requirement: str
    level: str
    worlds: str
    why: str
    needs: list[str]


@dataclass(frozen=True)
class WaivedRow:
    """One row under a waiver, and how long the waiver still holds, counted from the day of the run."""

    record: Record
    reason: str
    issue: str
    expires: str
    left: str
    stale: bool


@dataclass(frozen=True)
class RunView:
    """One run as the page shows it."""

    anchor: str
    name: str
    run: Run
    standing: Standing
    tallies: tuple[Tally, ...]
    facts: tuple[tuple[str, str], ...]
    worlds: tuple[str, ...]
    cards: tuple[Card, ...]
    causes: str
    idle: tuple[Reason, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]
    not_claimed: tuple[Reason, ...]
    waived: tuple[WaivedRow, ...]
    largest: int
    heat: HeatMap
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class Page:
    """All of it. ``environment`` has a name, one value a run, and whether the values differ."""

    title: str
    runs: tuple[RunView, ...]
    chapters: tuple[Chapter, ...]
    environment: tuple[tuple[str, tuple[str, ...], bool], ...]


def page_of(runs: Sequence[Run]) -> Page:
    """Build the view of one run, or of several side by side."""
    if not runs:
        raise ValueError("expected at least one run to show, got none")
    views = tuple(_run_view(run, f"run-{number}") for number, run in enumerate(runs, start=1))
    title = " · ".join(f"{view.standing.state}: {view.name}" for view in views)
    return Page(title, views, chapters_of([_column(view) for view in views]), _environment(runs))


def _run_view(run: Run, anchor: str) -> RunView:
    cards = _cards(run, anchor)
    return RunView(
        anchor=anchor,
        name=f"{run.header.implementation} on {run.header.backend}",
        run=run,
        standing=standing(run),
        tallies=tuple(tallies(run)),
        facts=tuple((name, value) for name, value in _facts(run) if value),
        worlds=unique([*run.header.worlds, *(record.world for record in run.records)]),
        cards=cards,
        causes=_causes(cards),
        idle=_reasons(record for record in run.records if record.verdict is Verdict.NOT_RUN),
        missing=tuple(missing(run)),
        problems=(*run.damage, *(run.footer.problems if run.footer else ())),
        not_claimed=_reasons(record for record in run.records if record.verdict is Verdict.NOT_CLAIMED),
        waived=tuple(_waived(record, run.header.started) for record in run.records if record.waiver is not None),
        heat=heat_map(run.records, {r.requirement: f"#{anchor_of(r.requirement)}" for r in run.records}),
        lanes=lanes_of(run.records),
        largest=max((size for record in filter(tried, run.records) for size in record.world_sizes), default=0),
    )


def _column(view: RunView) -> Column:
    return Column(view.run.records, view.worlds, {card.record.nodeid: f"#{card.anchor}" for card in view.cards})


def _reasons(records: Iterable[Record]) -> tuple[Reason, ...]:
    """One line a requirement and reason, whatever the number of worlds."""
    lines: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        lines.setdefault((record.requirement, record.message), []).append(record)
    return tuple(
        Reason(same[0].requirement, same[0].level, ", ".join(unique(r.world for r in same)), message, same[0].features)
        for (_, message), same in lines.items()
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    header, footer = run.header, run.footer
    return [
        ("Implementation", header.implementation),
        ("Backend", header.backend),
        ("Suite version", header.suite_version),
        ("Profile", header.profile),
        ("Levels judged", header.level),
        ("Worlds", ", ".join(header.worlds)),
        ("Started", moment_text(header.started)),
        ("Took", seconds_text(footer.seconds) if footer else "unknown: cut short"),
        ("Rows", f"{len(run.records)} written, {len(set(header.plan))} planned"),
        ("Seed", header.seed),
    ]


def _cards(run: Run, anchor: str) -> tuple[Card, ...]:
    """One card a red row, MUST first, rows of one cause together in the order in which the causes came up."""
    red = [record for record in run.records if record.verdict.is_red]
    causes = {cause: place for place, cause in enumerate(unique(record.cause for record in red))}
    red.sort(key=lambda record: (LEVELS.index(record.level), causes[record.cause]))
    return tuple(_card(record, f"{anchor}-red-{number}") for number, record in enumerate(red, start=1))


def _card(record: Record, anchor: str) -> Card:
    case = json_text(record.case) if record.case is not None else ""
    differences, ends = tuple(map(_differs, record.differences)), tuple(map(_rank_end, record.ranks))
    return Card(anchor, record, clipped(record.message), case, differences, ends)


def _differs(told: dict[str, Any]) -> Differs:
    words = {key: clipped(str(told.get(key, "")), 500) for key in ("where", "path", "got", "want")}
    return Differs(**words, much=_much(told.get("off"), told.get("allowed")))


def _much(off: Any, allowed: Any) -> str:
    """JSON may hold integers that no float does, and what is no number at all."""
    if not all(isinstance(size, (int, float)) and abs(size) < 1e300 for size in (off, allowed)):
        return "no bound measures it"
    return f"{off:.3g} off, {allowed:.3g} allowed" if allowed else f"{off:.3g} off, nothing allowed"


def _rank_end(end: dict[str, Any]) -> RankEnd:
    return RankEnd(*(clipped(str(end.get(key, ""))) for key in ("rank", "fate", "error", "traceback", "log")))


def _causes(cards: Iterable[Card]) -> str:
    found = Counter(card.record.cause or str(card.record.verdict) for card in cards)
    return ", ".join(f"{count} {cause}" for cause, count in found.items())


def _waived(record: Record, started: str) -> WaivedRow:
    waiver = record.waiver or {}
    expires, stale = waiver.get("expires", ""), record.verdict is Verdict.STALE_WAIVER
    days = days_left(expires, started)
    left = "" if days is None else plural(days, "day") if days >= 0 else f"{plural(-days, 'day')} ago"
    return WaivedRow(record, waiver.get("reason", ""), waiver.get("issue", ""), expires, left, stale)


def _environment(runs: Sequence[Run]) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    names = unique(name for run in runs for name in run.header.environment)
    rows = ((name, tuple(run.header.environment.get(name, "") for run in runs)) for name in names)
    return tuple((name, values, len(set(values)) > 1) for name, values in rows)
