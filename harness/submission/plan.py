"""The whole plan: every row that the suites of this checkout have, asked of pytest, which collects and runs nothing.

The harness imports no suites, so a process of its own imports them::

    verify ─▶ python -m pytest suites --collect-only -p harness.submission.collecting ─▶ a line of JSON a row
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import harness
from harness.provenance import plan_digest, suites_folder
from harness.report.text import one_line
from harness.verdict import LEVELS

#: The variable that tells the collecting process where to write.
OUTPUT = "FSDP_CONFORMANCE_PLAN"
#: In seconds; importing torch and the suites takes five of them on an idle machine.
_DEADLINE = 300.0


@dataclass(frozen=True)
class PlannedRow:
    """One row as the suites have it: what its record must say, whoever is judged."""

    nodeid: str
    requirement: str
    level: str
    world: str
    statement: str
    features: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    ranks: int = 1
    source: str = ""
    draws: bool = False


@dataclass(frozen=True)
class Plan:
    """Every row of the suites, by node id; ``sources`` and ``version`` say of which."""

    rows: dict[str, PlannedRow]
    version: str
    sources: str
    worlds: tuple[str, ...] = ("threads", "processes")

    def asked(self, level: str) -> dict[str, PlannedRow]:
        """The rows of a run that judges down to this level, or all."""
        levels = LEVELS[: LEVELS.index(level) + 1] if level in LEVELS else LEVELS
        return {nodeid: row for nodeid, row in self.rows.items() if row.level in levels}

    def digest(self, level: str) -> str:
        """What the header of such a run says of its plan."""
        return plan_digest((row.nodeid, row.requirement, row.level) for row in self.asked(level).values())


class PlanError(ValueError):
    """The suites could not be collected; one line that says why."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def collect(suites: Path | None = None) -> dict[str, PlannedRow]:
    """Ask pytest for the rows of the suites beside this package, or of others. Raises ``PlanError``."""
    suites = suites or suites_folder()
    if suites is None:
        raise PlanError("the suites are not installed, so there is no plan to compare with; run in a checkout")
    with tempfile.TemporaryDirectory(prefix="fsdp-conformance-") as folder:
        output = Path(folder, "plan")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        paths = [str(Path(harness.__file__).parent.parent), *filter(None, [environment.get("PYTHONPATH")])]
        try:
            ended = subprocess.run(
                _line(suites),
                cwd=suites.parent,
                env={**environment, "PYTHONPATH": os.pathsep.join(paths), OUTPUT: str(output)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_DEADLINE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PlanError(f"the suites could not be collected in {_DEADLINE:g} s; is the machine busy?") from error
        if ended.returncode or not output.exists():
            last = "\n".join((ended.stdout + ended.stderr).splitlines()[-5:])
            raise PlanError(f"the suites of this checkout cannot be collected, so there is no plan: {last}")
        rows = [_row(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return {row.nodeid: row for row in rows}


def _line(suites: Path) -> list[str]:
    """The command; what an ini file of the user's may set is set here."""
    words = [sys.executable, "-m", "pytest", str(suites), "--collect-only", "-qq", "--rootdir", str(suites.parent)]
    words += ["-p", "no:cacheprovider", "-p", "harness.submission.collecting"]
    plain = {"implementation": "torch", "backend": "gloo", "level": "all", "world": "both", "record": "", "waivers": ""}
    return [*words, *(word for name, value in plain.items() for word in (f"--{name}", value))]


def _row(line: str) -> PlannedRow:
    data = json.loads(line)
    return PlannedRow(**{**data, "features": tuple(data["features"]), "limits": tuple(data["limits"])})
