"""``fsdp-conformance verify``: whether an archive that was handed in is whole, and what its records come to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.report.text import one_line, plural
from harness.submission.archive import NotABundle, open_archive
from harness.submission.plan import Plan, PlanError
from harness.submission.verify import Verification, this_plan, verify
from harness.verdict import LEVELS

_MOST_TOLD = 200
_ENDS = """exit status: 0 verified; 1 refused, with everything that is wrong; 2 not an archive that bundle wrote, or it
cannot be read, or the suites of this checkout cannot be collected. Whether the subject conforms has no part in it: that
is in the lines that are printed."""


def main(arguments: Sequence[str], plan_here: Callable[[], Plan] = this_plan) -> int:
    """Verify an archive, and print what was found."""
    options = _parser().parse_args(arguments)
    try:
        found = verify(open_archive(options.archive), plan_here)
    except (NotABundle, PlanError) as error:
        if options.json:
            print(json.dumps({"state": "unreadable", "wrong": [one_line(str(error))]}))
        else:
            print(f"fsdp-conformance verify: {one_line(str(error))}", file=sys.stderr)
        return 2
    print(json.dumps(found.as_json(), indent=1, sort_keys=True) if options.json else "\n".join(said_of(found)))
    return 0 if found.is_verified else 1


def said_of(found: Verification) -> Iterator[str]:
    """The lines for a terminal: the runs, then all that is wrong, then one word."""
    for facts in found.runs:
        yield from map(one_line, _run(facts))
        yield from _totals(facts["totals"])
    yield f"sha256 of the archive: {found.sha256}"
    if found.is_verified:
        yield f"verified: {plural(len(found.members), 'member')}, {plural(len(found.runs), 'run')}, nothing is wrong"
        return
    count = len(found.wrong)
    yield f"refused: {'one thing is' if count == 1 else f'{count} things are'} wrong"
    yield from (f"- {sentence}" for sentence in found.wrong[:_MOST_TOLD])
    if count > _MOST_TOLD:
        yield f"- and {count - _MOST_TOLD} more; --json has them all"


def _run(facts: dict[str, Any]) -> Iterator[str]:
    yield f"{facts['record']}: {facts['implementation']} on {facts['backend']}: {facts['standing']}"
    asked = f"suite {facts['suite_version']}, profile {facts['profile']}, levels judged: {facts['level']}"
    yield f"{asked}, started {facts['started']}"


def _totals(totals: dict[str, Any]) -> Iterator[str]:
    lost = f" + {totals['missing']} missing" if totals["missing"] else ""
    parts = f"{totals['executed']} executed + {totals['explained']} explained{lost}"
    yield f"  {plural(totals['planned'], 'planned row')} = {parts}"
    for level in LEVELS:
        if level in totals["levels"]:
            counts = totals["levels"][level]
            told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
            yield f"  {level:6} {sum(counts.values()):5} rows: {told}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fsdp-conformance verify",
        description="Work out everything that an archive says again, from the record files in it, and compare: "
        "digests, the whole plan of these suites, every row against its own facts, waivers, the page, totals. "
        "Nothing in the archive is believed, run, or written to a disk. docs/submission.md says what this cannot show.",
        epilog=_ENDS,
    )
    parser.add_argument("archive", type=Path, metavar="submission.zip", help="the archive that bundle wrote")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    return parser
