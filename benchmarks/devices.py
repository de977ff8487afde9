"""How much sooner several workers end a run than one process does, on 8 devices that they share.

    python -m benchmarks.devices [--workers 4] [--repeats 3] [benchmarks/busy_devices.py]

The devices are simulated, and take their time: a program ends when its virtual time, multiplied, has passed. Ranks
sleep until then, as hosts wait for accelerators, so two cores do for 8 devices. Times are from the first program to the
end of the last, when all workers have started.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from harness.simulated.backend import backend as simulated
from harness.simulated.races import races

#: So many times as long as in virtual time, which for most programs is 30 to 800 µs.
SCALE = 3_000
#: The file to which ranks write when a program has begun, and when it is over.
LOG = "FSDP_CONFORMANCE_BENCHMARK"
backend = replace(
    simulated, own_devices=False, visible_devices="VISIBLE_SIMULATED_DEVICES", check="benchmarks.devices:take_time"
)


def take_time() -> Sequence[str]:
    """Let the time pass that this rank's device has worked since the last call; what races there were."""
    microseconds = torch.ops.simulated.stream_time(torch.accelerator.current_device_index())
    time.sleep(microseconds * SCALE / 1e6)
    with open(os.environ[LOG], "a", encoding="utf-8") as log:
        log.write(f"{time.monotonic()}\n")
    return races()


def seconds_of(suites: Sequence[str], workers: int, log: Path) -> float:
    """From the first program of a run to the end of the last; all results must be as expected."""
    words = ["-m", "pytest", "-q", *suites, "--implementation", "torch", "--backend", "benchmarks.devices:backend"]
    words += ["--numprocesses", str(workers), "--dist", "worksteal"] if workers > 1 else ["--numprocesses", "0"]
    tree = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(tree), LOG: str(log)}
    ended = subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    times = [float(line) for line in log.read_text().split()]
    log.unlink()
    return max(times) - min(times)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__)
    parser.add_argument("suites", nargs="*", default=["benchmarks/busy_devices.py"])
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    counts = [1, *options.workers]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        rounds = [[seconds_of(options.suites, count, log) for count in counts] for _ in range(options.repeats)]
    print("| workers | seconds: median (range) | as fast as one |\n|---|---|---|")
    alone = statistics.median(each[0] for each in rounds)
    for count, taken in zip(counts, zip(*rounds, strict=True), strict=True):
        median = statistics.median(taken)
        print(f"| {count} | {median:.0f} ({min(taken):.0f}–{max(taken):.0f}) | {alone / median:.1f} |")


if __name__ == "__main__":
    main()
