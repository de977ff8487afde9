"""``python -m harness.report run.jsonl [other.jsonl …] -o page.html``: make the page, or say in a sentence why not."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.report.page import render
from harness.report.read import RecordFileError, read_run
from harness.report.summary import standing
from harness.report.text import one_line, visible


def main(argv: Sequence[str] | None = None) -> int:
    """Make the page. 0 when it was written, whatever it says of the subject; 2 when it could not be."""
    options = _parser().parse_intermixed_args(argv)
    try:
        runs = [read_run(path) for path in options.records]
        page = options.output or options.records[0].with_suffix(".html")
        _refuse(page, options.records)
        _write(page, render(runs))
    except (RecordFileError, OSError) as error:
        print(f"fsdp-conformance report: {one_line(str(error))}", file=sys.stderr)
        return 2
    for run in runs:
        print(visible(f"{run.header.implementation} on {run.header.backend}: {standing(run)}"))
    print(visible(str(page)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fsdp-conformance report",
        description="Make one HTML page from what conformance runs recorded. With several runs the page shows them "
        "side by side. The page needs no network and no other file, so it can be mailed as it is.",
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="run.jsonl", help="a record file that a run wrote")
    default = "where to write the page (default: beside the first record file)"
    parser.add_argument("-o", "--output", type=Path, metavar="page.html", help=default)
    return parser


def _refuse(page: Path, records: Sequence[Path]) -> None:
    """Refuse a page that cannot be a file, or that would replace one of the records it is made from."""
    if page.is_dir():
        raise RecordFileError(f"{page}: is a directory; name the page itself, such as -o {page / 'page.html'}")
    if page.exists() and any(page.samefile(record) for record in records):
        raise RecordFileError(f"{page}: is one of the record files, which the page would replace; choose another -o")


def _write(page: Path, text: str) -> None:
    """Write beside the page, then move into place: there is the old page or the new one, never half of it."""
    beside = page.with_name(f".{page.name}.{os.getpid()}.tmp")
    try:
        with beside.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(beside, page)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(f"{page}: cannot be written ({why}); choose another place with -o") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


if __name__ == "__main__":
    sys.exit(main())
