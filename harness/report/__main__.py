"""``python -m harness.report run.jsonl [other.jsonl …] -o page.html``: make the page, or say in a sentence why not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.data.text import one_line, visible
from harness.records.output import write_output
from harness.records.reader import RecordFileError, read_run
from harness.records.standing import standing
from harness.report.page import render


def main(argv: Sequence[str] | None = None) -> int:
    """Make the page. 0 when it was written, whatever it says of the subject; 2 when it could not be."""
    options = _parser().parse_intermixed_args(argv)
    try:
        runs = [read_run(path) for path in options.records]
        page = options.output or options.records[0].with_suffix(".html")
        write_output(page, render(runs), options.records, "-o", "page.html")
    except (RecordFileError, OSError) as error:
        return refuse("report", error)
    for damage in filter(None, (run.damage for run in runs)):
        more = f"; and {len(damage) - 1} more, which the page has" if len(damage) > 1 else ""
        print(one_line(f"fsdp-conformance report: {damage[0]}{more}", 2000), file=sys.stderr)
    for run in runs:
        print(visible(f"{run.header.implementation} on {run.header.backend}: {standing(run)}"))
    print(page.resolve().as_uri())
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance report",
        description="Make one HTML page from what conformance runs recorded. With several runs the page shows them "
        "side by side. The page needs no network and no other file, so it can be mailed as it is.",
        epilog="exit status: 0 the page was written, whatever it says; 2 a file cannot be read or written.",
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="run.jsonl", help="a record file that a run wrote")
    default = "where to write the page (default: beside the first record file)"
    parser.add_argument("-o", "--output", type=Path, metavar="page.html", help=default)
    return parser


if __name__ == "__main__":
    sys.exit(main())
