"""Whether a row is one that a run writes: each check is a small pure function, from a row to what is wrong with it.

A failing row (ratio 3.2, a message) whose verdict was edited to pass gives two sentences::

    is a pass, but its worst difference is 3.2 times what is allowed
    is a pass, but has a message: rank 0: gradient of w …
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from harness.report.text import ratio_text
from harness.submission.manifest import Entry
from harness.submission.plan import PlannedRow
from harness.verdict import Header, Record, Verdict
from harness.waivers import Waiver


@dataclass(frozen=True)
class Row:
    """One row, the run that it is of, and the same row in the plan of this checkout, if that is to be compared."""

    record: Record
    entry: Entry
    planned: PlannedRow | None = None

    @property
    def header(self) -> Header:
        """The header of its run."""
        return self.entry.run.header


def passing(row: Row) -> Iterator[str]:
    """A pass has checked something, was within every bound, and has nothing to tell."""
    record = row.record
    if record.verdict is not Verdict.PASS:
        return
    if record.checks < 1:
        yield "is a pass, but made no effective check"
    if any(ratio > 1 for ratio in (record.ratio or 0.0, *record.ratios.values())):
        worst = max(record.ratio or 0.0, *record.ratios.values())
        yield f"is a pass, but its worst difference is {ratio_text(worst)} times what is allowed"
    if record.message or record.cause:
        yield f"is a pass, but has a message: {record.message or record.cause:.100}"
    if record.ranks or record.differences or record.case is not None:
        yield "is a pass, but keeps what ranks and cases of failures keep"


def failing(row: Row) -> Iterator[str]:
    """What did not pass says why; a failure also says of what kind."""
    record = row.record
    if record.verdict is not Verdict.PASS and not record.message.strip():
        yield f"is {_a(record.verdict)}, but has no message that says why"
    tried = (Verdict.FAIL, Verdict.WAIVED, Verdict.BROKEN)
    if record.verdict in tried and not record.cause:
        yield f"is {_a(record.verdict)}, but has no cause"


def measured(row: Row) -> Iterator[str]:
    """The worst ratio is the worst of those by cell; ratios and counts are what can be measured."""
    record = row.record
    worst = max(record.ratios.values(), default=None)
    if record.ratio != worst:
        yield f"has the worst ratio {record.ratio}, but the worst of its cells is {worst}"
    if any(not 0 <= ratio < float("inf") for ratio in record.ratios.values()):
        yield "has a ratio that is no measurement"
    if min(record.checks, record.examples, record.seconds) < 0:
        yield "has a count or a time below zero"
    if bool(record.examples) != bool(record.world_sizes):
        yield f"ran {record.examples} examples in worlds of the sizes {record.world_sizes}, which cannot be"
    if any(record.ratios.values()) and not record.checks:
        yield "found a difference, but made no check"


def explained(row: Row) -> Iterator[str]:
    """A row is not claimed if, and only if, a feature that it needs is not claimed; then nothing was tried."""
    record, claims = row.record, row.entry.claims
    unclaimed = [feature for feature in record.features if feature not in claims]
    if record.verdict is Verdict.NOT_CLAIMED:
        if not unclaimed:
            yield "is not claimed, but every feature that it needs is claimed in the header"
        elif not record.message.startswith(f"{unclaimed[0]}: "):
            yield f"is not claimed, but its message does not name {unclaimed[0]}"
    elif unclaimed:
        yield f"is {_a(record.verdict)}, but needs {unclaimed[0]}, which is not claimed"
    if record.verdict is Verdict.NOT_CLAIMED and (record.checks or record.examples):
        yield "was not tried, but counts checks or examples"


def not_run(row: Row) -> Iterator[str]:
    """What was not run says what it needed, and needs it."""
    record, planned = row.record, row.planned
    if record.verdict is not Verdict.NOT_RUN or record.cause == "world":
        return
    if record.checks or record.examples:
        yield "was not run, but counts checks or examples"
    reasons = ["every case needs more ranks than the ", f"{record.message.split(' ')[0]} workers would share "]
    if planned is not None:
        reasons += [f"needs {planned.ranks} ranks in the {record.world} world"]
        reasons += [f"needs {limit} (" for limit in planned.limits]
        if not record.message.startswith(tuple(reasons)):
            yield f"was not run, but the reason is none that this requirement can have: {record.message:.100}"


def waived(row: Row) -> Iterator[str]:
    """A row has the waiver that covers it, and the verdict that follows: waived, or stale."""
    if not row.header.waiver_files:
        return  # which is told of the run, if it has waivers
    record, found = row.record, _covering(row)
    told = None if found is None else found.as_json()
    if record.waiver is not None and told is None:
        yield f"has a waiver ({_issue(record)}), but no waiver file of the run covers the row"
    elif record.waiver != told:
        mine = "without a waiver" if record.waiver is None else f"with the waiver {_issue(record)}"
        yield f"was recorded {mine}, but the run's waiver files cover it with {_issue(told)}"
    if record.verdict in (Verdict.WAIVED, Verdict.STALE_WAIVER) and record.waiver is None:
        yield f"is {_a(record.verdict)}, but by no waiver"
    if found is None:
        return
    if record.verdict in (Verdict.PASS, Verdict.FAIL):
        then = "a stale waiver" if record.verdict is Verdict.PASS else "waived"
        yield f"is {_a(record.verdict)}, but a waiver covers it ({found.issue}), so it would be {then}"
    days = _days(row.header.started)
    if record.verdict is Verdict.WAIVED and days and found.expired(days[0]):
        yield f"is waived, but its waiver ({found.issue}) ran out on {found.expires}, before the day of the run"
    if record.verdict is Verdict.STALE_WAIVER and record.cause and days and not found.expired(days[1]):
        yield f"is a stale waiver, but its waiver ({found.issue}) holds until {found.expires}, and the row fails"


def itself(row: Row) -> Iterator[str]:
    """The row is the one that its node id names, and says of it what the suites say."""
    record, planned = row.record, row.planned
    if record.world not in record.nodeid.rpartition("[")[2].rstrip("]").split("-"):
        yield f"says it ran in the {record.world} world, which its node id does not"
    if record.world not in row.header.worlds:
        yield f"ran in the {record.world} world, which the header does not name"
    if record.chapter != record.requirement.partition("/")[0]:
        yield f"is of the chapter {record.chapter}, but its id is {record.requirement}"
    if planned is None:
        return
    for name in ("requirement", "level", "world", "statement", "source"):
        told, meant = getattr(record, name), getattr(planned, name)
        if told != meant:
            yield f"has the {name} {told!r:.100}, but in this suite version it is {meant!r:.100}"
    if tuple(record.features) != planned.features:
        yield f"needs the features {record.features}, but in this suite version {list(planned.features)}"
    if planned.draws and record.verdict is Verdict.PASS and not record.examples:
        yield "is a pass of a requirement that draws cases, but tried none"


def reproduced(row: Row) -> Iterator[str]:
    """The line that runs it again runs this row, on the case that failed."""
    subject, case = again(row.record)
    if not subject:
        yield f"is run again by a line that is not of this row: {row.record.reproduce:.100}"
    elif case and _json(case) != row.record.case:
        yield "is run again with another case than the one that it keeps"


#: Every check of a row.
ROW_CHECKS: tuple[Callable[[Row], Iterator[str]], ...] = (
    passing,
    failing,
    measured,
    explained,
    not_run,
    waived,
    itself,
    reproduced,
)


def again(record: Record) -> tuple[str, str]:
    """Of the line that runs a row again, the subject and the case, unquoted; "" where it is no such line.

    Nothing is split by the shell's rules, which take long for long lines: the line is one that a run writes, or none.
    """
    start = f"{shlex.join(['pytest', record.nodeid, '--implementation'])} "
    if not record.reproduce.startswith(start):
        return "", ""
    subject, _, case = record.reproduce[len(start) :].partition(" --case ")
    if not re.fullmatch(r"\S{1,500} --backend \S{1,500}", subject):
        return "", ""
    return subject, case[1:-1].replace("'\"'\"'", "'") if case.startswith("'") else case


def _json(text: str) -> Any:
    """JSON as a record has it, in which numbers that JSON has no words for are texts."""
    try:
        return json.loads(text, parse_constant=lambda name: repr(float(name)))
    except (ValueError, RecursionError):
        return None


def _a(verdict: Verdict) -> str:
    """``a fail``, ``waived``."""
    return f"a {verdict}" if verdict in (Verdict.PASS, Verdict.FAIL, Verdict.STALE_WAIVER) else str(verdict)


def _issue(told: Record | dict[str, str] | None) -> str:
    waiver = told.waiver if isinstance(told, Record) else told
    return "none" if waiver is None else f"{waiver.get('issue', '')} until {waiver.get('expires', '')}"


def _covering(row: Row) -> Waiver | None:
    """The waiver of the run's files that covers a row: of the implementation, or of the backend on this torch."""
    record, header = row.record, row.header
    said = header.implementation
    # The header has the name and the version in one, and a name may have spaces.
    spaces = [at for at, mark in enumerate(said[:200]) if mark == " "]
    subjects = [(said, ""), *((said[:at], said[at + 1 :]) for at in spaces)]
    subjects.append((header.backend, header.environment.get("torch", "")))
    of_row = row.entry.waivers_naming(record.requirement, record.nodeid)
    return next((w for w in of_row if any(w.covers(record.requirement, record.nodeid, *s) for s in subjects)), None)


def _days(started: str) -> tuple[date, date] | None:
    """The first and the last day that it was anywhere when a run began; waivers end by the day of the machine."""
    try:
        moment = datetime.fromisoformat(started)
        return (moment - timedelta(hours=12)).date(), (moment + timedelta(hours=14)).date()
    except (ValueError, OverflowError):
        return None
