"""``python -m harness.report run.jsonl [other.jsonl …] -o page.html``: make the page, or say in a sentence why not."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.data.text import one_line, visible
from harness.exports.github import annotations_of, step_summary
from harness.exports.summary import summary_of
from harness.records.output import json_document, write_output
from harness.records.reader import RecordFileError, Run, read_run
from harness.records.standing import standing
from harness.report.page import render


def main(argv: Sequence[str] | None = None) -> int:
    """Make the page. 0 when it was written, whatever it says of the subject; 2 when it could not be."""
    options = _parser().parse_intermixed_args(argv)
    try:
        runs = [read_run(path) for path in options.records]
        page = options.output or options.records[0].with_suffix(".html")
        if options.json:
            write_output(options.json, json_document(summary_of(runs)), options.records, "--json", "summary.json")
        write_output(page, render(runs), options.records, "-o", "page.html")
        if options.github:
            _tell_github(runs)
    except (RecordFileError, OSError) as error:
        return refuse("report", error)
    for damage in filter(None, (run.damage for run in runs)):
        more = f"; and {len(damage) - 1} more, which the page has" if len(damage) > 1 else ""
        print(one_line(f"fsdp-conformance report: {damage[0]}{more}", 2000), file=sys.stderr)
    for run in runs:
        print(visible(f"{run.header.subject}: {standing(run)}"))
    print(page.resolve().as_uri())
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print("fsdp-conformance report: no browser could be opened; open the page by its link", file=sys.stderr)
    return 0


def _tell_github(runs: Sequence[Run]) -> None:
    """Print annotations, and add to the summary of the step, if this is one."""
    for line in annotations_of(runs):
        print(line)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(step_summary(runs))


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
    add_outputs(parser)
    return parser


def add_outputs(parser: Parser) -> None:
    """The options on what is made besides the page, which ``run`` has, too."""
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="also write verdicts and red results as JSON")
    words = "on GitHub Actions: annotate red results, and add a summary to the step"
    parser.add_argument("--github", action="store_true", help=words)
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


if __name__ == "__main__":
    sys.exit(main())
