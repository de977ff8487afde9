"""Whether a run is whole, and nobody's excerpt: each check is a small pure function, in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness import __version__
from harness.profiles import PROFILES
from harness.report.read import missing
from harness.report.text import plural
from harness.submission.manifest import Entry, sha256
from harness.submission.plan import Plan
from harness.submission.rows import ROW_CHECKS, Row, again
from harness.verdict import LEVELS

#: Options of pytest that leave out tests, as words of a command line start.
_PARTS = (
    "-k",
    "-m",
    "--deselect",
    "--ignore",
    "--lf",
    "--last-failed",
    "--case",
    "--stepwise",
    "--sw",
    "-x",
    "--maxfail",
)


@dataclass(frozen=True)
class Submitted:
    """One run, and the plan of this checkout where both are of one suite version."""

    entry: Entry
    plan: Plan | None = None


def several(names: Sequence[str], most: int = 5) -> str:
    """``a, b, c, d, e and 7 others``."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {plural(len(names) - most, 'other')}"


def undamaged(given: Submitted) -> Iterator[str]:
    """Every line could be read, from header to footer."""
    yield from given.entry.run.damage


def versioned(given: Submitted) -> Iterator[str]:
    """The suite that judged is this one."""
    version = given.entry.run.header.suite_version
    if version != __version__:
        theirs = f"was judged by version {version!r:.40} of the suite, and this is {__version__}"
        yield f"{theirs}: its plan and its page were not compared; verify it with that version, or judge again"


def same_sources(given: Submitted) -> Iterator[str]:
    """The sources that judged are these, to the byte."""
    theirs, plan = given.entry.run.header.sources, given.plan
    if not theirs:
        yield "does not say which sources judged, as files of earlier checkouts do not; judge again with this one"
    elif plan is not None and theirs != plan.sources:
        others = f"was judged by other sources (sha256 {theirs:.12}) than these ({plan.sources:.12})"
        yield f"{others}: a changed test, or another commit of version {plan.version}; verify it in a checkout of that"


def whole_plan(given: Submitted) -> Iterator[str]:
    """The plan is every row that the suites have, at the levels judged."""
    run, plan = given.entry.run, given.plan
    header = run.header
    twice = [nodeid for nodeid, count in Counter(header.plan).items() if count > 1]
    if twice:
        yield f"plans {several(twice)} more than once"
    if header.level not in (*LEVELS, "all"):
        yield f"judges the level {header.level!r:.40}, which there is not"
    if plan is None:
        return
    wanted, planned = plan.asked(header.level), set(header.plan)
    left_out = [nodeid for nodeid in wanted if nodeid not in planned]
    if left_out:
        count = f"{len(left_out)} of the {plural(len(wanted), 'row')} of this suite version"
        yield f"plans a part: {count} are not in its plan ({several(left_out)}); {_blame(header.command)}"
    unknown = [nodeid for nodeid in dict.fromkeys(header.plan) if nodeid not in wanted]
    if unknown:
        yield f"plans {plural(len(unknown), 'row')} that this suite version has not: {several(unknown)}"


def _blame(command: str) -> str:
    words = [word for word in command.split() if word.startswith(_PARTS) or "::" in word or word.endswith(".py")]
    cause = f"the run was started with {words[0]}" if words else "the command does not say why"
    return f"{cause}; run the suites as a whole"


def planned_digest(given: Submitted) -> Iterator[str]:
    """The digest of the plan in the header is that of the suites."""
    header, plan = given.entry.run.header, given.plan
    if not header.plan_digest:
        yield "has no digest of its plan, as files of earlier checkouts have none; judge again with this one"
    elif plan is not None and header.plan_digest != plan.digest(header.level):
        yield "has another plan digest than this suite version: rows, requirement ids or levels differ"


def both_worlds(given: Submitted) -> Iterator[str]:
    """Every kind of world was judged in."""
    worlds = given.entry.run.header.worlds
    lost = [world for world in ("threads", "processes") if world not in worlds]
    if lost:
        yield f"judges no row in the {lost[0]} world; run the suites with --world both"


def known_profile(given: Submitted) -> Iterator[str]:
    """Cases were drawn by a profile of the suite's."""
    profile = given.entry.run.header.profile
    if profile not in PROFILES:
        yield f"drew its cases by the profile {profile!r:.40}; expected one of {', '.join(PROFILES)}"


def claims_are_clear(given: Submitted) -> Iterator[str]:
    """No feature is both claimed and explained away."""
    header = given.entry.run.header
    both = sorted(set(header.claims) & set(header.not_claimed))
    if both:
        yield f"both claims and does not claim {several(both)}"


def accounted(given: Submitted) -> Iterator[str]:
    """Planned = executed + explained: each planned row was written, and no other."""
    run = given.entry.run
    lost = missing(run)
    if lost:
        yield f"has no row for {len(lost)} of the rows that it planned: {several(lost)}"
    planned = set(run.header.plan)
    strangers = [record.nodeid for record in run.records if record.nodeid not in planned]
    if strangers:
        yield f"has {plural(len(strangers), 'row')} that it did not plan: {several(strangers)}"


def ended(given: Submitted) -> Iterator[str]:
    """pytest's exit status is that of the rows and problems."""
    run = given.entry.run
    if run.footer is None:
        return
    status, red = run.footer.exit_status, sum(record.verdict.is_red for record in run.records)
    if status not in (0, 1):
        yield f"ended with status {status}, so pytest did not get to its end"
    elif status == 0 and (red or run.footer.problems):
        yield f"ended with status 0, but has {plural(red, 'red row')} and {plural(len(run.footer.problems), 'problem')}"
    elif status == 1 and not (red or run.footer.problems):
        yield "ended with status 1, but no row and no problem says why"


def unedited(given: Submitted) -> Iterator[str]:
    """The digest that the run wrote at its end is that of the lines before."""
    run = given.entry.run
    if run.footer is None:
        return
    before = given.entry.data.rstrip(b"\r\n").rpartition(b"\n")[0] + b"\n"
    if not run.footer.digest:
        yield "has no digest of its lines, as files of earlier checkouts have none; judge again with this one"
    elif run.footer.digest != sha256(before):
        yield "was edited after the run: its lines are not those whose digest the footer has"


def in_time(given: Submitted) -> Iterator[str]:
    """The run has a beginning, and its end is no earlier."""
    run = given.entry.run
    moments = [run.header.started, *([run.footer.finished] if run.footer else [])]
    try:
        times = [datetime.fromisoformat(moment) for moment in moments]
        if times != sorted(times):
            yield f"finished ({moments[-1]}) before it started ({moments[0]})"
    except (ValueError, TypeError):
        yield f"does not say when it ran, as times with a zone: {' and '.join(moments):.100}"


def one_subject(given: Submitted) -> Iterator[str]:
    """All rows are run again on the same subject."""
    subjects = {again(record)[0] for record in given.entry.run.records} - {""}
    if len(subjects) > 1:
        yield f"has rows of several subjects: {several(sorted(subjects))}"


def waivers_there(given: Submitted) -> Iterator[str]:
    """Every waiver file that the run read is in the archive."""
    told = given.entry.run.header.waiver_files
    covered = [record.requirement for record in given.entry.run.records if record.waiver is not None]
    if covered and not told:
        yield f"names no waiver file, and yet has waivers for {several(list(dict.fromkeys(covered)))}"
    if len(given.entry.waiver_members) != len(told):
        names = [f"{file.get('name')} ({file.get('sha256', ''):.12})" for file in told]
        yield f"was run with the waiver files {several(names)}, and not all of them are in the archive"


def rows_hold(given: Submitted) -> Iterator[str]:
    """Every row is one that a run writes."""
    rows = given.plan.rows if given.plan is not None else {}
    for record in given.entry.run.records:
        row = Row(record, given.entry, rows.get(record.nodeid))
        for check in ROW_CHECKS:
            for sentence in check(row):
                yield f"{record.requirement} [{record.world}] {sentence}"


#: Every check of a run, in the order in which they are told.
RUN_CHECKS: tuple[Callable[[Submitted], Iterator[str]], ...] = (
    undamaged,
    versioned,
    same_sources,
    whole_plan,
    planned_digest,
    both_worlds,
    known_profile,
    claims_are_clear,
    accounted,
    ended,
    unedited,
    in_time,
    one_subject,
    waivers_there,
    rows_hold,
)
