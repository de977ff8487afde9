"""``fsdp-conformance watch RUN.jsonl``: follow the run that writes this file, until it ends."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from harness.cli import Parser, refuse
from harness.data.text import one_line
from harness.pytest_plugin.planned import planned_results
from harness.pytest_plugin.progress import Progress
from harness.records.reader import RecordFileError, Run, miscounted, read_run

#: How often the file is looked at, in seconds.
_LOOK = 0.5


def main(arguments: Sequence[str]) -> int:
    """Print red results as they come, and how far the run is; the run's exit status, or 2 if this is no record file.

    A file that is not there yet is waited for.
    """
    options = _parser().parse_args(arguments)
    try:
        return _watch(options.run, options.every)
    except (RecordFileError, OSError) as error:
        return refuse("watch", error)


def _watch(path: Path, every: float) -> int:
    progress, printed, size = Progress({}), float("-inf"), -1
    if not path.exists():
        print(one_line(f"waiting for {path}, which is not there yet"), flush=True)
    while True:
        grown = path.stat().st_size if path.exists() else 0
        if grown != size and grown > 0:
            size, run = grown, read_run(path)
            progress.planned = progress.planned or planned_results(run.header.plan)
            for red in filter(None, map(progress.add, run.records)):
                print(red, flush=True)
            if run.footer is not None:
                last = progress.line(run.footer.seconds, is_over=True)
                print("\n".join([last, *map(one_line, miscounted(run))]), flush=True)
                return min(run.footer.exit_status, 255)
            if time.monotonic() - printed >= every:
                printed = time.monotonic()
                print(progress.line(_seconds_of(run)), flush=True)
        threading.Event().wait(_LOOK)


def _seconds_of(run: Run) -> float:
    """How long the run has been going on, by this machine's clock."""
    try:
        started = datetime.fromisoformat(run.header.started)
        return max(0.0, (datetime.now(timezone.utc) - started).total_seconds())
    except (ValueError, TypeError):
        return float("nan")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {one_line(text, 40)!r}")
    return seconds


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance watch",
        description="Follow a run by its record file (pytest's --record), from any terminal: print each red result as "
        "it comes, and regularly how far the run is. Ends with the run; Ctrl-C ends it earlier and does not affect the "
        "run.",
        epilog="exit status: the run's own once it has ended; 2 the file cannot be read, or is no record file.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.jsonl", help="the record file that a run is writing")
    words = "time between two lines of progress (default: %(default)g)"
    parser.add_argument("--every", type=_seconds, default=10.0, metavar="SECONDS", help=words)
    return parser
