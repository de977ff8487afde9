"""Running again: whether the same run gives the same records, and each failing record fails again from its own line.

    python -m tests.plugin.rerun same --times 10 suites/training/test_training_parity.py --implementation torch
    python -m tests.plugin.rerun replay --implementation tests.mutants.numbers.reductions:does_not_reduce \\
        suites/training/test_training_parity.py

Arguments that are not known here go to pytest. Processes run side by side: whether a rank had just returned or was
interrupted when another one failed is a matter of time, and so is which rank was first to raise what all of them raise:
both are left out there. In the thread world even that repeats.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.records.reader import Run, read_run
from harness.records.record import Verdict
from tests import ROOT as ROOT

TIMES = ("seconds", "started", "finished", "command", "digest")


def run(record: Path, arguments: Sequence[str], hash_seed: int = 0) -> Run:
    """One run of pytest from the command line, and what it recorded. Python's own hashes differ by their seed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "--record", str(record)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    return read_run(record)


def lines_of(found: Run) -> list[dict[str, Any]]:
    """Everything that a run wrote, without times and paths, results by name: workers write them as they end."""
    assert found.footer is not None, "the run was cut short"
    results = sorted(found.records, key=lambda record: record.nodeid)
    return [without_times(line.as_json()) for line in (found.header, *results, found.footer)]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """One line of a record file, without what may differ."""
    kept = {key: value for key, value in line.items() if key not in TIMES}
    for rank in kept.get("ranks", ()):
        del rank["log"]  # what libraries print has times of their own
    if kept.get("world") == "processes":
        kept["message"] = re.sub(r"^rank \d+ of ", "a rank of ", kept["message"].partition("\n")[0])
        kept["ranks"] = [rank for rank in kept["ranks"] if rank["fate"] not in ("returned", "interrupted")]
    return kept


def differing(runs: Sequence[list[dict[str, Any]]]) -> list[str]:
    """The results in which one of the runs differs from the first, by node id; ``header`` and ``footer`` for those."""
    return sorted(
        {
            str(line.get("nodeid", line["kind"]))
            for other in runs[1:]
            for line, again in zip(runs[0], other, strict=True)
            if line != again
        }
    )


def _same(times: int, arguments: Sequence[str], there: Path) -> bool:
    runs: list[list[dict[str, Any]]] = []
    for number in range(times):
        runs.append(lines_of(run(there / f"{number}.jsonl", arguments, number)))
        print(f"run {number + 1} of {times}: {len(runs[-1]) - 2} results, {len(differing(runs))} differ", flush=True)
    for name in differing(runs):
        print(f"differs: {name}")
    return not differing(runs)


def _replay(arguments: Sequence[str], there: Path) -> bool:
    failing = [record for record in run(there / "all.jsonl", arguments).records if record.verdict is Verdict.FAIL]
    others = 0
    for number, record in enumerate(failing, 1):
        again = run(there / f"{number}.jsonl", shlex.split(record.reproduce)[1:]).records
        same = len(again) == 1 and _alike(record.as_json(), again[0].as_json())
        others += not same
        print(f"[{number}/{len(failing)}] {record.nodeid}: {'fails alike' if same else 'ENDS OTHERWISE'}", flush=True)
    return others == 0 and bool(failing)


def _alike(record: dict[str, Any], again: dict[str, Any]) -> bool:
    """The same verdict on the same case for the same reason; how many cases it took to find it is another matter."""
    keys = ("nodeid", "verdict", "cause", "case", "message")
    first, second = without_times(record), without_times(again)
    return all(first[key] == second[key] for key in keys)


def main() -> int:
    """Run, say what differs, and exit with 1 if something does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("same", "replay"))
    parser.add_argument("--times", type=int, default=10)
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as there:
        if options.what == "same":
            return 0 if _same(options.times, arguments, Path(there)) else 1
        return 0 if _replay(arguments, Path(there)) else 1


if __name__ == "__main__":
    sys.exit(main())
