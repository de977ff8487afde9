"""Judging from Python: ``judge`` runs the suites in a process of its own and gives back the run.

from fsdp_conformance import judge, standing

run = judge(implementation="my_vendor.conformance:implementation", backend="gloo", only="parity,sharding")
print(standing(run))                                # DOES NOT CONFORM: 1 MUST result fails; …
failures = [record.message for record in run.records if record.failed]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.commands.pytest_process import run_recorded
from harness.data.text import one_line
from harness.records.reader import Run as Run
from harness.records.reader import read_run
from harness.records.record import Record as Record
from harness.records.record import Verdict as Verdict
from harness.records.standing import Standing as Standing
from harness.records.standing import standing as standing


def judge(
    implementation: str = "torch",
    backend: str = "auto",
    *,
    only: str | Sequence[str] = (),
    world: str = "both",
    level: str = "all",
    profile: str = "quick",
    waivers: str | Path | None = None,
    record: str | Path | None = None,
    limit: float = 0.0,
) -> Run:
    """Judge an implementation on a backend, each a name or ``module:attribute``, and return the run.

    ``only`` has chapters and requirement ids (none: all of them), ``limit`` is in seconds (0: none), and ``record`` is
    where the record file stays, of which ``fsdp-conformance report`` makes a page. A run that was interrupted, or left
    requirements out, is INCOMPLETE. Raises ValueError if nothing was recorded: a name that is not known, an
    implementation that cannot be loaded, a file that cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="fsdp-judge-") as folder:
        path, said = Path(record or Path(folder, "run.jsonl")), Path(folder, "said")
        names = only if isinstance(only, str) else ",".join(only)
        options = {"implementation": implementation, "backend": backend, "world": world, "level": level, "only": names}
        options |= {"hypothesis-profile": profile, "waivers": str(waivers or "")}
        with said.open("wb") as output:
            line = [f"--{name}={value}" for name, value in options.items() if value]
            *_, is_written = run_recorded(["--pyargs", "suites", *line], path, limit, output)
        if not is_written:
            raise ValueError(_why(said.read_text(encoding="utf-8", errors="replace")))
        return read_run(path)


def _why(said: str) -> str:
    """What pytest said of a run that recorded nothing."""
    found = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    return one_line(found[0] if found else f"nothing was recorded; pytest said: {said.strip()[-400:]}", 1000)
