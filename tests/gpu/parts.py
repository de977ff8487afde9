"""The parts of the first run on GPUs: commands that fail independently, each with its own limit in minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests import ROOT

#: How long a part may take to end once it is asked to, in seconds.
GRACE = 20.0
End = Literal["passed", "failed", "out of time"]


@dataclass(frozen=True)
class Part:
    """One command. ``record`` is the file of its results, if it has any."""

    name: str
    command: tuple[str, ...]
    minutes: float
    record: str = ""


@dataclass(frozen=True)
class Ended:
    """How a part ended, after how many seconds, and its last lines."""

    name: str
    end: End
    seconds: float
    tail: str


def parts(backend: str, shared: str, several: str, through_host: str, folder: Path) -> list[Part]:
    """All parts in their order: 25 minutes at most together. ``folder`` is where records go."""
    doctor = Part("doctor", ("-m", "harness.doctor", "--backend", backend, "--json", str(folder / "doctor.json")), 1)
    processes = ("--world", "processes", "--backend")
    suites = [
        *(
            _suites(f"{name} in threads", ["--world", "threads", "--implementation", name, "--backend", shared], 4, 5)
            for name in ("torch", "reference")
        ),
        _suites("a rank a device", [*processes, backend], 1, 2),
        _suites("several ranks a device", [*processes, several], 3, 7),
        _suites("through the host", [*processes, through_host, "--only", "parity,communication"], 2, 2),
    ]
    speed = Part("reference against torch", ("-m", "benchmarks.reference_vs_torch", "--only", "host", "work"), 3)
    return [doctor, *(replace(part, record=str(folder / part.record)) for part in suites), speed]


def _suites(name: str, arguments: Sequence[str], workers: int, minutes: float) -> Part:
    """The suites, by so many processes of pytest."""
    command = ("-m", "pytest", "-q", "suites", *arguments, *(["-n", str(workers)] if workers > 1 else []))
    return Part(name, command, minutes, f"{name.replace(' ', '-')}.jsonl")


def run(part: Part) -> Ended:
    """Run a part to its end or its limit."""
    print(f"{part.name}: at most {part.minutes:g} min", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        record = ["--record", part.record] if part.record else []
        command = [sys.executable, *part.command, *record]
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        try:
            end: End = "passed" if process.wait(part.minutes * 60) == 0 else "failed"
        except subprocess.TimeoutExpired:
            end = "out of time"
        finally:
            _end(process)
        output.seek(0)
        tail = output.read().strip().splitlines()[-12:]
    return Ended(part.name, end, round(time.monotonic() - started, 1), "\n".join(tail))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs: asked to, so that a run can write its records, then not asked."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, stop)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
