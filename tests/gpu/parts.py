"""The parts of the first run on GPUs: commands that fail independently, each with its own limit in minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tests import ROOT

SHORT = ("suites/training/test_training_parity.py", "suites/communication/test_communication.py")
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

    def as_json(self) -> dict[str, object]:
        """For the file that says what has been done."""
        return asdict(self)


def parts(backend: str, several: str, forked: str, folder: Path) -> list[Part]:
    """All parts in their order: 25 minutes at most together. ``folder`` is where records go."""
    doctor = Part("doctor", ("-m", "harness.doctor", "--backend", backend, "--json", str(folder / "doctor.json")), 2)
    whole = [
        _suites(
            f"{name} in {world}",
            ["suites", "--world", world, "--implementation", name, "--backend", backend],
            folder,
            4,
        )
        for name in ("torch", "reference")
        for world in ("threads", "processes")
    ]
    more = [
        _suites("several ranks a device", [*SHORT, "--world", "processes", "--backend", several], folder, 2),
        _suites("forked ranks", [*SHORT, "--world", "processes", "--backend", forked], folder, 1),
    ]
    speed = Part("reference against torch", ("-m", "benchmarks.reference_vs_torch", "--only", "host", "work"), 3)
    return [doctor, *whole, *more, speed]


def _suites(name: str, arguments: Sequence[str], folder: Path, minutes: float) -> Part:
    record = str(folder / f"{name.replace(' ', '-')}.jsonl")
    return Part(name, ("-m", "pytest", "-q", *arguments, "--record", record), minutes, record)


def run(part: Part) -> Ended:
    """Run a part to its end or its limit; then it and all that it has started is ended."""
    print(f"{part.name}: at most {part.minutes:g} min", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *part.command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=part.minutes * 60)
        end: End = "passed" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate()
        end = "out of time"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return Ended(part.name, end, round(time.monotonic() - started, 1), "\n".join(output.strip().splitlines()[-12:]))
