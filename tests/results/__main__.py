"""``python -m tests.results [RECORD.jsonl …]``: put runs among the published results, and write their page again."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from harness.records.reader import read_run
from tests import ROOT
from tests.results.page import Cause, Causes, in_one_line, page
from tests.results.summary import Summary, read, summary_of, written

FOLDER = ROOT / "docs" / "results"


def causes(folder: Path = FOLDER) -> list[Cause]:
    """Why results fail."""
    return msgspec.toml.decode((folder / "causes.toml").read_bytes(), type=Causes).cause


def main() -> None:
    """Read the records, replace runs of the same place, and write summary and page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, metavar="RECORD.jsonl")
    found: dict[object, Summary] = {one.place: one for one in read(FOLDER / "summary.json")}
    for path in parser.parse_args().records:
        one = summary_of(read_run(path))
        found[one.place] = one
    summaries = sorted(found.values(), key=lambda one: (one.subject, one.torch, one.backend, one.worlds))
    (FOLDER / "summary.json").write_text(written(summaries), encoding="utf-8")
    (FOLDER / "README.md").write_text(page(summaries, causes()), encoding="utf-8")
    print(in_one_line(summaries))


if __name__ == "__main__":
    main()
