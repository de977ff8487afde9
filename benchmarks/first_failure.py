"""How soon a run shows its first failure, on a subject that sums where it should average: by command, in turn.

    python -m benchmarks.first_failure [--repeats 5] [--tree ANOTHER_CHECKOUT …]

Seconds from the command to the line on the terminal, and seconds of processors that all its processes took until then,
which other users of the machine change less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.worlds.system.process_tree import below

SUBJECT = ["--implementation", "tests.mutants.numbers.reductions:sums_for_averages", "-x"]
COMMANDS = {
    "pytest suites": ["pytest", "suites"],
    "pytest suites -n 2": ["pytest", "suites", "-n", "2"],
    "fsdp-conformance run": ["harness.cli", "run"],
}


def first_failure(tree: Path, command: list[str]) -> tuple[float, float]:
    """Seconds until the first failing result of a run in this checkout, and of processors."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", *command, *SUBJECT, *(["-o", folder] if "run" in command else [])]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        started = time.monotonic()
        with subprocess.Popen(words, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            printed = next((line for line in process.stdout if line.startswith("fail: ")), "")
            found = time.monotonic() - started, sum(map(processor_seconds, [process.pid, *below(process.pid)]))
            process.stdout.read()
    assert printed, f"{' '.join(words)}: no result has failed"
    return found


def processor_seconds(pid: int) -> float:
    """What a process and its children that have ended have taken; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_failure", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout, measured in turn")
    options = parser.parse_args()
    trees = [Path(__file__).resolve().parent.parent, *options.tree]
    print("| command | checkout | seconds: median (range) | processors: median |\n|---|---|---|---|")
    for name, command in COMMANDS.items():
        rounds = [[first_failure(tree, command) for tree in trees] for _ in range(options.repeats)]
        for tree, taken in zip(trees, zip(*rounds, strict=True), strict=True):
            wall, processors = zip(*taken, strict=True)
            spread = f"{statistics.median(wall):.1f} ({min(wall):.1f}–{max(wall):.1f})"
            print(f"| `{name}` | {tree.name} | {spread} | {statistics.median(processors):.1f} |", flush=True)


if __name__ == "__main__":
    main()
