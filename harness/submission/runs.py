"""Checks of one run of an archive: each is a function from a run to its problems, one sentence each.

They need the record file and its waiver files only. A record file that was edited by the person who also makes its
digests again passes them; that is what signatures are for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.data.text import plural
from harness.records.provenance import plan_digest
from harness.records.reader import Run, miscounted, missing
from harness.records.record import Verdict
from harness.waivers.waiver import Waiver

_WAIVED = (Verdict.WAIVED, Verdict.STALE_WAIVER)


@dataclass(frozen=True)
class SubmittedRun:
    """One run, and the waivers in the archive by the SHA-256 of their file."""

    run: Run
    waivers: Mapping[str, tuple[Waiver, ...]]


def readable(given: SubmittedRun) -> Iterator[str]:
    """Every line can be read, and the last one is the footer."""
    yield from given.run.damage


def complete(given: SubmittedRun) -> Iterator[str]:
    """The plan leaves out no requirement, each planned result is there, and no other."""
    header = given.run.header
    if header.left_out:
        left_out = plural(header.left_out, "requirement")
        yield f"is a run of a part: {left_out} of the suites left out of its plan; run the suites without -k and paths"
    lost = missing(given.run)
    if lost:
        yield f"has no result for {len(lost)} of {len(header.plan)} planned tests: {_several(lost)}"
    planned = set(header.plan)
    unplanned = [record.nodeid for record in given.run.records if record.nodeid not in planned]
    if unplanned:
        yield f"has {plural(len(unplanned), 'result')} that it did not plan: {_several(unplanned)}"


def planned_digest(given: SubmittedRun) -> Iterator[str]:
    """The plan digest in the header is that of the results; files written by older versions have none."""
    stated = given.run.header.plan_digest
    digest = plan_digest((record.nodeid, record.requirement, record.level) for record in given.run.records)
    if stated not in ("", digest) and not missing(given.run):
        yield f"states the plan digest {stated:.12}, but its results give {digest:.12}: an id or a level was edited"


def counted(given: SubmittedRun) -> Iterator[str]:
    """The records are as many of each verdict as the footer states."""
    yield from miscounted(given.run)


def ended(given: SubmittedRun) -> Iterator[str]:
    """pytest ended normally, and its exit status is that of the verdicts, counted again."""
    footer = given.run.footer
    if footer is None:
        return  # which ``readable`` reports
    red = sum(record.verdict.is_red for record in given.run.records)
    found = f"{plural(red, 'failing result')} and {plural(len(footer.problems), 'problem')}"
    if footer.exit_status not in (0, 1):
        yield f"ended with exit status {footer.exit_status}, so pytest did not finish; run it again"
    elif footer.exit_status != bool(red or footer.problems):
        yield f"states exit status {footer.exit_status}, but has {found}"


def waivers_present(given: SubmittedRun) -> Iterator[str]:
    """The archive has each waiver file that the run read, and these have each waiver that a record names."""
    files = {file.get("sha256", ""): file.get("name", "") for file in given.run.header.waiver_files}
    lost = [f"{name} ({digest:.12})" for digest, name in files.items() if digest not in given.waivers]
    if lost:
        yield f"read waiver files that are not in the archive: {_several(lost)}"
        return
    known = {_key(waiver.as_json()) for digest in files for waiver in given.waivers[digest]}
    waived = [record for record in given.run.records if record.waiver is not None or record.verdict in _WAIVED]
    unknown = [record.requirement for record in waived if _key(record.waiver or {}) not in known]
    if unknown:
        yield f"has results under waivers that its waiver files do not have: {_several(unknown)}"


#: All checks of a run, in the order of their report.
RUN_CHECKS = (readable, complete, planned_digest, counted, ended, waivers_present)


def _key(waiver: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(waiver.items()))


def _several(names: list[str], most: int = 5) -> str:
    """``a, b, c, d, e and 7 others``."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {plural(len(names) - most, 'other')}"
