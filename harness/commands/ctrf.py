"""``fsdp-conformance ctrf RUN.jsonl``: a run in the Common Test Report Format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.exports.ctrf import ctrf_of
from harness.records.output import json_document, write_output
from harness.records.reader import RecordFileError, read_run


def main(arguments: Sequence[str]) -> int:
    """Write or print the report: 0 if it was made, whether or not the subject conforms; 2 if not."""
    options = _parser().parse_args(arguments)
    try:
        text = json_document(ctrf_of(read_run(options.run))) + "\n"
        if options.output:
            write_output(options.output, text, [options.run], "-o", "ctrf.json")
    except (RecordFileError, OSError) as error:
        return refuse("ctrf", error)
    if not options.output:
        print(text, end="")
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance ctrf",
        description="Write a run as CTRF JSON, the Common Test Report Format that dashboards and CI show. Our verdicts "
        "are in rawStatus; a waived result has the status other, and a planned one that was never written is pending.",
        epilog="exit status: 0 the report was made, also if results failed; 2 a file cannot be read or written.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.jsonl", help="a record file that a run wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it (default: print it)")
    return parser
