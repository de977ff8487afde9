"""The command that makes ``suites/durations.tsv``, by which the time that is left is estimated.

python -m tests.durations RUN.jsonl > suites/durations.tsv
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from harness.pytest_plugin.planned import OTHERS
from harness.records.reader import read_run
from harness.records.record import Record

#: Results that took at least so long, in seconds, have a line of their own.
LONG = 2.0


def table(records: list[Record]) -> Iterator[str]:
    """The lines of the file."""
    yield "# Seconds by requirement and world: python -m tests.durations RUN.jsonl"
    for record in sorted((each for each in records if each.seconds >= LONG), key=lambda each: -each.seconds):
        yield f"{record.requirement}\t{record.world}\t{record.seconds:.1f}"
    others = [record.seconds for record in records if record.seconds < LONG]
    yield f"{OTHERS}\t\t{sum(others) / len(others):.2f}"


if __name__ == "__main__":
    print("\n".join(table(read_run(Path(sys.argv[1])).records)))
