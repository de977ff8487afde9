"""Try one mutant: a run of the suites in a process of its own, until the first failure.

The run's ranks import the mutated module, too, whether they are forked or started: PYTHONPATH reaches all of them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from harness.records.reader import RecordFileError, read_run
from harness.records.record import Record, Verdict
from tests import ROOT
from tests.patience import GUARD
from tests.random_mutants.sampling import RandomMutant

End = Literal["killed", "crash", "hang", "broken", "survived"]
_RECORD = "record.jsonl"
_HOOK = Path(__file__).parent / "hook"
#: Errors that any use of the code would show.
_CRASHES = re.compile(r"\b(TypeError|AttributeError|NameError|UnboundLocalError|ImportError)\b")


class Try(NamedTuple):
    """What came of one mutant in one world.

    ``end``: *crash* is a kill by an error that any use would show, *hang* one by the time limit; *broken* is a result
    that the suites take for their own fault, or a stale waiver, which is no kill. ``by``: the requirement, if any.
    """

    id: str
    world: str
    end: End
    by: str
    message: str
    position: int
    seconds: float
    diff: str

    @property
    def is_killed(self) -> bool:
        """Whether a run says that the implementation is wrong."""
        return self.end in ("killed", "crash", "hang")


async def tried(
    mutant: RandomMutant,
    world: str,
    suites: Sequence[str] = ("suites",),
    limit: float = GUARD,
    backend: str = "gloo",
) -> Try:
    """Run the suites on it in one world; ``limit`` is how long a run without a further result is waited for."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        subject = ["--implementation", mutant.implementation, "--backend", backend, "--world", world]
        # pytest would itself load modules of an installed project with an entry point, to rewrite assertions in them.
        options = [
            "--assert=plain",
            "-qxp",
            "no:cacheprovider",
            "--hypothesis-profile",
            "unshrunk",
            "--record",
            str(folder / _RECORD),
        ]
        status, output = await _pytest([*suites, *subject, *options], _environment(mutant, folder), folder, limit)
        end = _judged(status, folder / _RECORD, output)
    return Try(mutant.id, world, *end, round(time.monotonic() - started, 1), mutant.diff)


def _environment(mutant: RandomMutant, folder: Path) -> dict[str, str]:
    """In which Python imports the mutated module, whose source is written to the folder."""
    source = folder / "mutant.py"
    if mutant.edit is not None:
        source.write_text(mutant.source, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(_HOOK), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "MUTANT_MODULE": mutant.module, "MUTANT_SOURCE": str(source)}


async def _pytest(
    arguments: Sequence[str], environment: dict[str, str], folder: Path, limit: float
) -> tuple[int | None, str]:
    """The exit status, None where the run hung, and what was printed."""
    command = [sys.executable, "-m", "pytest", *arguments]
    with (folder / "output").open("w+", encoding="utf-8", errors="replace") as file:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        status = await _ended(process, folder / _RECORD, limit)
        file.seek(0)
        return status, file.read()


async def _ended(process: asyncio.subprocess.Process, record: Path, limit: float) -> int | None:
    """The exit status, or None where no further result came for so long; the process is then ended."""
    written, before = 0, -1
    try:
        while written != before:
            with suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(process.wait(), limit)
            written, before = record.stat().st_size if record.exists() else 0, written
        return None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _judged(status: int | None, record: Path, output: str) -> tuple[End, str, str, int]:
    """``end``, ``by``, ``message`` and ``position`` of a try."""
    try:
        records = read_run(record).records
    except (OSError, RecordFileError):
        records = []
    red = next((one for one in records if one.verdict.is_red), None)
    if red is not None:
        return _end_of(red), red.requirement, _first_line(red.message), records.index(red)
    if status is None:
        return "hang", "", "no further result came", len(records)
    if status == 0 or (status == 1 and records):  # 1: a note on the run, such as a waiver of what was not selected
        return "survived", "", "", len(records)
    return "crash", "", _error_in(output), len(records)


def _end_of(record: Record) -> End:
    if record.verdict is not Verdict.FAIL:
        return "broken"
    if record.cause == "hung":
        return "hang"
    return "crash" if record.cause == "raised" and _CRASHES.search(record.message) else "killed"


def _error_in(output: str) -> str:
    """The last line that names an error; else the last: a summary may come before or after what was wrong."""
    lines = output.strip().splitlines() or [""]
    return _first_line(next((line for line in reversed(lines) if "Error" in line), lines[-1]))


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:300]
