"""The options of a judged run, each with an ini twin, and what the plugin keeps on pytest's own objects."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

import pytest

from harness.pytest_plugin.judged import Judged
from harness.records.record import Record
from harness.records.writer import Journal
from harness.trial.trial import Trial
from harness.trial.verdict import Result

JUDGED = pytest.StashKey[Judged]()
JOURNAL = pytest.StashKey[Journal]()
RECORDS = pytest.StashKey[list[Record]]()
PROBLEMS = pytest.StashKey[list[str]]()
STARTED = pytest.StashKey[float]()
#: How many rows the run will have.
PLANNED = pytest.StashKey[int]()
TRIAL = pytest.StashKey[Trial]()
END = pytest.StashKey[Result]()
#: Why a row that is tried all the same is not claimed.
UNCLAIMED = pytest.StashKey[str]()
WATCH = pytest.StashKey[threading.Timer]()

OPTIONS = {
    "implementation": ("torch", "who is judged: torch, reference, an entry point, or module:attribute"),
    "backend": ("auto", "where ranks run: auto, gloo, nccl, an entry point, or module:attribute"),
    "world": ("both", "threads, processes, or both; or attached, where a launcher has started the ranks"),
    "record": ("", "write one JSON line per test to this file"),
    "waivers": ("", "TOML file of known failures"),
    "unclaimed": ("leave", "rows of what is not claimed: leave them out, or try them, to see what could be claimed"),
    "level": ("all", "judge must only, must and should, or all"),
}


def option(config: pytest.Config, name: str) -> str:
    """The value given on the command line, else in the ini file, else the default."""
    value = config.getoption(f"--{name}")
    return str(value if value is not None else config.getini(name))


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
