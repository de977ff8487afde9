"""``fsdp-conformance compare A.jsonl B.jsonl``: what changed in run B, the candidate, since A, the baseline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from msgspec import to_builtins

from harness.cli import Parser, refuse
from harness.data.text import one_line
from harness.records.output import json_document, write_output
from harness.records.reader import RecordFileError, read_run
from harness.run_comparison.difference import DRIFT, Change, Comparison, compare
from harness.run_comparison.report_text import text_of

_ENDS = """exit status: 0 no regression; 1 regressions: results that passed in A and fail or are broken in B, or
were planned in B and never written (with --strict also results that passed in A and are waived, not tried or absent in
B); 2 a file cannot be read or written."""


def main(arguments: Sequence[str]) -> int:
    """Compare two record files: 0 without a regression, 1 with one, 2 if a file cannot be read or written."""
    options = _parser().parse_args(arguments)
    try:
        comparison = compare(read_run(options.baseline), read_run(options.candidate), options.drift)
        _show(comparison, options)
    except (RecordFileError, OSError) as error:
        return refuse("compare", error)
    return 1 if comparison.regressions or (options.strict and _passes_lost(comparison)) else 0


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance compare",
        description="Show what differs between two runs: versions and environment first, then results that regressed, "
        "were fixed, are newly run, no longer run, added or removed. Only results that passed in the baseline A can "
        "regress. A planned result that was never written is lost, which is not the same as not run.",
        epilog=_ENDS,
    )
    parser.add_argument("baseline", type=Path, metavar="A.jsonl", help="the baseline: an earlier run, or one on CUDA")
    parser.add_argument("candidate", type=Path, metavar="B.jsonl", help="the run to compare with it")
    parser.add_argument("--json", metavar="FILE", help="write the comparison as JSON too; - prints it in place of text")
    parser.add_argument("--all", action="store_true", help="show long lists in full")
    parser.add_argument("--strict", action="store_true", help="count more as a regression, see exit status")
    words = "report results that pass in both and whose worst ÷ allowed grew by this factor (default: %(default)g)"
    parser.add_argument("--drift", type=_factor, default=DRIFT, metavar="FACTOR", help=words)
    return parser


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {one_line(text, 40)!r}")
    return factor


def _show(comparison: Comparison, options: argparse.Namespace) -> None:
    text = json_document(to_builtins(comparison)) if options.json else ""
    if options.json == "-":
        print(text)
        return
    if options.json:
        write_output(
            Path(options.json), text + "\n", [options.baseline, options.candidate], "--json", "comparison.json"
        )
    print(text_of(comparison, options.all))


def _passes_lost(comparison: Comparison) -> bool:
    kinds = (Change.EXCUSED, Change.NO_LONGER_RUN, Change.REMOVED)
    return any(one.baseline == "pass" for kind in kinds for one in comparison.of(kind))
