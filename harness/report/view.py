"""What the page shows, as plain values: no HTML here, and no thinking in the template.

For each run: its standing, its bars, its failures in groups, and why results were not tried or are waived. For all runs
together: the table of ``grid.py``, and what differs between the environments; of two runs, the comparison.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from harness.data.text import days_left, moment_text, plural, seconds_text, unique
from harness.records.reader import Run, miscounted, missing
from harness.records.record import Record, Verdict
from harness.records.standing import (
    Standing,
    Tally,
    chapter_tallies,
    elsewhere,
    first_blocking,
    gaps,
    standing,
    tallies,
)
from harness.report.cards import Card, again_words, is_flaky
from harness.report.claims import Claims, claims_of
from harness.report.downloads import Download, downloads_of
from harness.report.evidence import leads_of
from harness.report.grid import Chapter, Column, anchor_of, chapters_of, worlds_of
from harness.report.groups import FailureGroup, groups_of
from harness.report.matrix import Matrix, matrix_of
from harness.report.pictures.curves import Chart, charts_of
from harness.report.pictures.heat import HeatMap, heat_map
from harness.report.pictures.spread import Lane, beside, lanes_of
from harness.run_comparison.difference import Comparison, compare


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
    """One result under a waiver, and how long the waiver still holds, counted from the day of the run.

    ``href`` is where the issue is, empty where it names no place.
    """

    record: Record
    reason: str
    issue: str
    href: str
    expires: str
    left: str
    stale: bool


@dataclass(frozen=True)
class Flaky:
    """A result whose failing case passed when it was run again, how often, and its card."""

    record: Record
    said: str
    href: str


@dataclass(frozen=True)
class RunView:
    """One run as the page shows it.

    ``gaps`` are what the run lacks, with what to do; ``leads`` sentences on the cause of all failures.
    """

    anchor: str
    name: str
    run: Run
    standing: Standing
    gaps: tuple[tuple[str, str], ...]
    first_failure: str
    leads: tuple[str, ...]
    tallies: tuple[Tally, ...]
    chapters: tuple[Tally, ...]
    facts: tuple[tuple[str, str], ...]
    worlds: tuple[str, ...]
    groups: tuple[FailureGroup, ...]
    flaky: tuple[Flaky, ...]
    causes: str
    idle: tuple[Reason, ...]
    elsewhere: tuple[Reason, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]
    claims: Claims
    not_claimed: tuple[Reason, ...]
    waived: tuple[WaivedRow, ...]
    largest: int
    heat: HeatMap
    lanes: tuple[Lane, ...]
    charts: tuple[Chart, ...]
    downloads: tuple[Download, ...]
    matrix: Matrix | None

    @property
    def cards(self) -> tuple[Card, ...]:
        """All failing results, in the order of the page."""
        return tuple(card for group in self.groups for card in group.cards)

    @property
    def hrefs(self) -> dict[str, str]:
        """Where the page has more of a red row, by node id."""
        return {card.record.nodeid: f"#{card.anchor}" for card in self.cards}


@dataclass(frozen=True)
class Page:
    """All of it. ``environment`` has a name, one value a run, and whether the values differ."""

    title: str
    runs: tuple[RunView, ...]
    worlds: tuple[str, ...]
    chapters: tuple[Chapter, ...]
    environment: tuple[tuple[str, tuple[str, ...], bool], ...]
    comparison: Comparison | None


def page_of(runs: Sequence[Run]) -> Page:
    """Build the view of one run, or of several side by side; of two, the first is the baseline of the second."""
    if not runs:
        raise ValueError("expected at least one run to show, got none")
    views = tuple(_run_view(run, f"run-{number}") for number, run in enumerate(runs, start=1))
    comparison = compare(runs[0], runs[1]) if len(runs) == 2 else None
    if comparison:
        views = (views[0], replace(views[1], lanes=beside(views[1].lanes, views[0].lanes)))
    title = " · ".join(f"{view.standing.state}: {view.name}" for view in views)
    columns = [_column(view) for view in views]
    return Page(title, views, worlds_of(columns), chapters_of(columns), _environment(runs), comparison)


def _place_of(path: Path) -> str:
    """A record file as commands in the current folder name it; of one elsewhere the name alone."""
    if not path.is_absolute():
        return str(path)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def _run_view(run: Run, anchor: str) -> RunView:
    groups = groups_of(run.records, anchor, _place_of(run.path))
    cards = [card for group in groups for card in group.cards]
    rows = {record.requirement: f"#{anchor_of(record.requirement)}" for record in run.records}
    hrefs = {record.nodeid: rows[record.requirement] for record in run.records}
    hrefs |= {card.record.nodeid: f"#{card.anchor}" for card in cards}
    own, first, red = standing(run), first_blocking(run), [card.record for card in cards]
    return RunView(
        anchor=anchor,
        name=run.header.subject,
        run=run,
        standing=own,
        gaps=tuple(gaps(run).items()),
        first_failure=hrefs[first.nodeid] if first else f"#{cards[0].anchor}" if cards else "",
        leads=leads_of(red, run.records) if len(groups) > 1 else (),
        tallies=tuple(tallies(run)),
        chapters=tuple(chapter_tallies(run.records)),
        facts=tuple((name, value) for name, value in _facts(run) if value),
        worlds=unique([*run.header.worlds, *(record.world for record in run.records)]),
        groups=groups,
        flaky=tuple(_flaky(run.records, cards)),
        causes=_causes(cards),
        idle=_reasons(record for record in run.records if record.verdict is Verdict.NOT_RUN),
        elsewhere=_reasons((r for r in run.records if r.backend and r.was_tried), lambda r: f"on {r.backend}"),
        missing=tuple(missing(run)),
        problems=(*miscounted(run), *run.damage, *(run.footer.problems if run.footer else ())),
        claims=claims_of(run.header, run.records),
        not_claimed=_reasons(record for record in run.records if record.verdict is Verdict.NOT_CLAIMED),
        waived=tuple(_waived(record, run.header.started) for record in run.records if record.waiver is not None),
        largest=max((size for record in run.records if record.was_tried for size in record.world_sizes), default=0),
        heat=heat_map(run.records, rows),
        lanes=lanes_of(run.records),
        charts=charts_of(run.records),
        downloads=downloads_of(run),
        matrix=matrix_of(run.records, anchor, hrefs),
    )


def _column(view: RunView) -> Column:
    return Column(view.run.records, view.worlds, view.hrefs)


def _reasons(records: Iterable[Record], why: Callable[[Record], str] = attrgetter("message")) -> tuple[Reason, ...]:
    """One line a requirement and reason, whatever the number of worlds."""
    lines: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        lines.setdefault((record.requirement, why(record)), []).append(record)
    return tuple(
        Reason(same[0].requirement, same[0].level, ", ".join(unique(r.world for r in same)), message, same[0].features)
        for (_, message), same in lines.items()
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    header, footer = run.header, run.footer
    return [
        ("Fallback", ", ".join(f"{name}, {plural(n, 'result')}" for name, n in elsewhere(run.records).items())),
        ("Suite version", header.suite_version),
        ("Profile", header.profile),
        ("Levels judged", header.level),
        ("Worlds", ", ".join(header.worlds)),
        ("Started", moment_text(header.started)),
        ("Took", seconds_text(footer.seconds) if footer else "unknown: cut short"),
        ("Results", f"{len(run.records)} written, {len(set(header.plan))} planned"),
        ("Seed", header.seed),
    ]


def _flaky(records: Iterable[Record], cards: Iterable[Card]) -> Iterable[Flaky]:
    hrefs = {card.record.nodeid: f"#{card.anchor}" for card in cards}
    for record in records:
        if is_flaky(record):
            yield Flaky(
                record, again_words(record.again), hrefs.get(record.nodeid, f"#{anchor_of(record.requirement)}")
            )


def _causes(cards: Iterable[Card]) -> str:
    found = Counter(card.record.cause or str(card.record.verdict) for card in cards)
    return ", ".join(f"{count} {cause}" for cause, count in found.items())


def _waived(record: Record, started: str) -> WaivedRow:
    waiver = record.waiver or {}
    expires, stale = waiver.get("expires", ""), record.verdict is Verdict.STALE_WAIVER
    days = days_left(expires, started)
    left = "" if days is None else plural(days, "day") if days >= 0 else f"{plural(-days, 'day')} ago"
    issue = waiver.get("issue", "")
    return WaivedRow(record, waiver.get("reason", ""), issue, issue_address(issue), expires, left, stale)


def issue_address(issue: str) -> str:
    """Where an issue is: an https address as it is, ``owner/name#7`` on GitHub; empty for other words."""
    if re.fullmatch(r"https://[A-Za-z0-9.-]{1,200}(/[A-Za-z0-9._~/?#=&%-]{0,500})?", issue):
        return issue
    found = re.fullmatch(r"([A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100})#(\d{1,9})", issue)
    return f"https://github.com/{found[1]}/issues/{found[2]}" if found else ""


def _environment(runs: Sequence[Run]) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    names = unique(name for run in runs for name in run.header.environment)
    rows = ((name, tuple(run.header.environment.get(name, "") for run in runs)) for name in names)
    return tuple((name, values, len(set(values)) > 1) for name, values in rows)
