"""``fsdp-conformance verify``: check that a submitted archive is intact, and show its results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import __version__
from harness.cli import Parser, refuse
from harness.data.kinds import LEVELS
from harness.data.text import one_line, plural
from harness.records.facts import facts_of
from harness.records.provenance import sources_digest
from harness.records.reader import Run
from harness.records.standing import standing
from harness.submission.archive import MOST_BYTES, SubmissionError, read_file, unpack
from harness.submission.verify import Verification, verify

_MOST_SHOWN = 200
_EXIT_STATUS = """exit status: 0 verified; 1 refused, with every problem; 2 not an archive that bundle wrote, or it
cannot be read. Whether the subject conforms does not matter here; the printed lines say so."""


def main(arguments: Sequence[str]) -> int:
    """Verify an archive, and print the outcome."""
    options = _parser().parse_args(arguments)
    try:
        found = verify(unpack(read_file(options.archive, MOST_BYTES), options.archive.name), sources_digest())
    except SubmissionError as error:
        if not options.json:
            return refuse("verify", error)
        print(json.dumps({"state": "unreadable", "problems": [str(error)]}))
        return 2
    print(json.dumps(as_json(found), indent=1, sort_keys=True) if options.json else "\n".join(lines_of(found)))
    return 0 if found.is_verified else 1


def as_json(found: Verification) -> dict[str, Any]:
    """The verification as JSON types; ``state`` is verified or refused."""
    return {
        "state": "verified" if found.is_verified else "refused",
        "suite_version": __version__,
        "sha256": found.sha256,
        "problems": list(found.problems),
        "notes": list(found.notes),
        "runs": {name: {**facts_of(run), "reason": standing(run).reason} for name, run in found.runs.items()},
        "members": list(found.members),
    }


def lines_of(found: Verification) -> Iterator[str]:
    """The lines for a terminal: the runs, notes, and the result with its problems."""
    for name, run in found.runs.items():
        yield from map(one_line, _run(name, run))
        yield from _counts(run)
    yield from (f"note: {note}" for note in found.notes)
    yield f"sha256 of the archive: {found.sha256}"
    if found.is_verified:
        yield f"verified: {plural(len(found.members), 'member')}, {plural(len(found.runs), 'run')}, no problem found"
        return
    yield f"refused: {plural(len(found.problems), 'problem')}"
    yield from (f"- {problem}" for problem in found.problems[:_MOST_SHOWN])
    if len(found.problems) > _MOST_SHOWN:
        yield f"- and {len(found.problems) - _MOST_SHOWN} more; --json has them all"


def _run(name: str, run: Run) -> Iterator[str]:
    header = run.header
    yield f"{name}: {header.subject}: {standing(run)}"
    judged = f"suite {header.suite_version}, profile {header.profile}, levels judged: {header.level}"
    yield f"{judged}, worlds: {', '.join(header.worlds)}, started {header.started}"


def _counts(run: Run) -> Iterator[str]:
    yield f"  {plural(len(run.header.plan), 'planned test')}, {plural(len(run.records), 'result')}"
    by_level = facts_of(run)["counts"]
    for level in (level for level in LEVELS if level in by_level):
        counts = by_level[level]
        shown = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        yield f"  {level:6} {plural(sum(counts.values()), 'result'):>12}: {shown}"


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance verify",
        description="Check that an archive is intact: its members have the digests that the manifest states, every "
        "planned result is there, the verdicts counted again give the manifest and the page, and the waivers that "
        "records name are in the waiver files. Nothing in the archive is run or written to a disk. It does not show "
        "who wrote the archive or that the records are true: see docs/submission.md.",
        epilog=_EXIT_STATUS,
    )
    parser.add_argument("archive", type=Path, metavar="submission.zip", help="the archive that bundle wrote")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser
