"""What the page shows, as plain values: no HTML here, and no thinking in the template.

Two runs of one requirement in two worlds become one ``Row`` with two ``Side``s of two ``Cell``s each::

                          torch on gloo           my_fsdp on gloo
                          threads   processes     threads   processes
    sharding/1d-layout    pass      pass          fail      pass         differs
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.read import Run, missing
from harness.report.summary import PART_OF, Standing, Tally, standing, tallies, worst_of
from harness.report.text import clipped, days_left, json_text, plural, ratio_text, seconds_text
from harness.verdict import LEVELS, Record, Verdict


@dataclass(frozen=True)
class Ratio:
    """Worst ÷ allowed as text and as a meter: ``filled`` is 0 to 100, ``over`` whether it exceeds the bound."""

    text: str
    filled: float
    over: bool
    where: str


@dataclass(frozen=True)
class Cell:
    """One requirement in one world of one run; ``note`` counts the rows behind it when there are several."""

    verdict: Verdict
    note: str
    href: str


@dataclass(frozen=True)
class Side:
    """One requirement in one run: a cell a world (None where nothing was written), and what it took."""

    cells: tuple[Cell | None, ...]
    ratio: Ratio | None
    checks: int
    examples: int
    sizes: str
    took: str


@dataclass(frozen=True)
class Row:
    """One requirement across all runs; ``parts`` and ``differs`` are what the filter looks at."""

    anchor: str
    requirement: str
    statement: str
    level: str
    parts: str
    differs: bool
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Chapter:
    """Requirements that belong together, in the order they ran."""

    name: str
    summary: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class RankEnd:
    """What became of one rank."""

    rank: str
    fate: str
    error: str
    traceback: str
    log: str


@dataclass(frozen=True)
class Card:
    """One red row, with all a person needs to see it again."""

    anchor: str
    record: Record
    message: str
    case: str
    ranks: tuple[RankEnd, ...]


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
    idle: tuple[Record, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]
    not_claimed: tuple[Record, ...]
    waived: tuple[WaivedRow, ...]
    largest: int


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
    return Page(title, views, _chapters(views), _environment(runs))


def _run_view(run: Run, anchor: str) -> RunView:
    cards = _cards(run, anchor)
    return RunView(
        anchor=anchor,
        name=f"{run.header.implementation} on {run.header.backend}",
        run=run,
        standing=standing(run),
        tallies=tuple(tallies(run)),
        facts=tuple((name, value) for name, value in _facts(run) if value),
        worlds=_unique([*run.header.worlds, *(record.world for record in run.records)]),
        cards=cards,
        causes=_causes(cards),
        idle=tuple(record for record in run.records if record.verdict is Verdict.NOT_RUN),
        missing=tuple(missing(run)),
        problems=(*run.damage, *(run.footer.problems if run.footer else ())),
        not_claimed=tuple(record for record in run.records if record.verdict is Verdict.NOT_CLAIMED),
        waived=tuple(_waived(record, run.header.started) for record in run.records if record.waiver is not None),
        largest=max((size for record in run.records for size in record.world_sizes), default=0),
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
        ("Started", header.started),
        ("Took", seconds_text(footer.seconds) if footer else "unknown: cut short"),
        ("Rows", f"{len(run.records)} written, {len(set(header.plan))} planned"),
        ("Seed", header.seed),
    ]


def _cards(run: Run, anchor: str) -> tuple[Card, ...]:
    """One card a red row, MUST first, rows of one cause together."""
    red = [record for record in run.records if record.verdict.is_red]
    red.sort(key=lambda record: (LEVELS.index(record.level), record.cause))
    return tuple(_card(record, f"{anchor}-red-{number}") for number, record in enumerate(red, start=1))


def _card(record: Record, anchor: str) -> Card:
    case = json_text(record.case) if record.case is not None else ""
    return Card(anchor, record, clipped(record.message), case, tuple(_rank_end(end) for end in record.ranks))


def _rank_end(end: dict[str, Any]) -> RankEnd:
    return RankEnd(*(clipped(str(end.get(key, ""))) for key in ("rank", "fate", "error", "traceback", "log")))


def _causes(cards: Iterable[Card]) -> str:
    found = [card.record.cause or str(card.record.verdict) for card in cards]
    return ", ".join(f"{found.count(cause)} {cause}" for cause in _unique(found))


def _waived(record: Record, started: str) -> WaivedRow:
    waiver = record.waiver or {}
    expires, stale = waiver.get("expires", ""), record.verdict is Verdict.STALE_WAIVER
    days = days_left(expires, started)
    left = "" if days is None else plural(days, "day") if days >= 0 else f"{plural(-days, 'day')} ago"
    return WaivedRow(record, waiver.get("reason", ""), waiver.get("issue", ""), expires, left, stale)


def _chapters(views: Sequence[RunView]) -> tuple[Chapter, ...]:
    by_chapter: dict[str, dict[str, list[list[Record]]]] = {}
    for number, view in enumerate(views):
        for record in view.run.records:
            sides = by_chapter.setdefault(record.chapter, {}).setdefault(record.requirement, [[] for _ in views])
            sides[number].append(record)
    hrefs = {(view.anchor, card.record.nodeid): f"#{card.anchor}" for view in views for card in view.cards}
    return tuple(_chapter(name, found, views, hrefs) for name, found in by_chapter.items())


_Hrefs = dict[tuple[str, str], str]


def _chapter(name: str, found: dict[str, list[list[Record]]], views: Sequence[RunView], hrefs: _Hrefs) -> Chapter:
    rows = tuple(_row(sides, views, hrefs) for sides in found.values())
    records = [record for sides in found.values() for side in sides for record in side]
    red = sum(record.verdict.is_red for record in records)
    return Chapter(name, plural(len(rows), "requirement") + (f", {red} red" if red else ""), rows)


def _row(sides: list[list[Record]], views: Sequence[RunView], hrefs: _Hrefs) -> Row:
    records = [record for side in sides for record in side]
    first = records[0]
    worst = {worst_of(record.verdict for record in side) if side else None for side in sides}
    return Row(
        anchor="req-" + re.sub(r"[^A-Za-z0-9]+", "-", first.requirement).strip("-"),
        requirement=first.requirement,
        statement=first.statement,
        level=first.level,
        parts=" ".join(_unique(PART_OF[record.verdict].name.lower() for record in records)),
        differs=len(worst) > 1,
        sides=tuple(_side(side, view, hrefs) for side, view in zip(sides, views, strict=True)),
    )


def _side(records: list[Record], view: RunView, hrefs: _Hrefs) -> Side:
    sizes = sorted({size for record in records for size in record.world_sizes})
    return Side(
        cells=tuple(_cell([r for r in records if r.world == world], view.anchor, hrefs) for world in view.worlds),
        ratio=_ratio(records),
        checks=sum(record.checks for record in records),
        examples=sum(record.examples for record in records),
        sizes=", ".join(map(str, sizes)),
        took=seconds_text(sum(record.seconds for record in records)),
    )


def _cell(records: list[Record], anchor: str, hrefs: _Hrefs) -> Cell | None:
    if not records:
        return None
    verdict = worst_of(record.verdict for record in records)
    same = [record for record in records if record.verdict is verdict]
    note = "" if len(records) == 1 else f"{len(same)} of {len(records)}"
    return Cell(verdict, note, hrefs.get((anchor, same[0].nodeid), ""))


def _ratio(records: list[Record]) -> Ratio | None:
    """The worst ratio of a requirement; not a number counts as the worst of all."""
    measured = [(record.ratio, record.worst) for record in records if record.ratio is not None]
    if not measured:
        return None
    ratio, where = max(measured, key=lambda pair: _size(pair[0]))
    return Ratio(ratio_text(ratio), round(100 * min(max(_size(ratio), 0.0), 1.0), 1), _size(ratio) > 1, where)


def _size(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else ratio


def _environment(runs: Sequence[Run]) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    names = _unique(name for run in runs for name in run.header.environment)
    rows = ((name, tuple(run.header.environment.get(name, "") for run in runs)) for name in names)
    return tuple((name, values, len(set(values)) > 1) for name, values in rows)


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
