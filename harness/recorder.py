"""Keeping the records of a run: in the one process that runs the tests, or in the one that pytest-xdist's workers tell.

worker: test ends ─▶ report with its record ─▶ one line of JSON ─▶ controller: record ─▶ record file
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import settings

from harness import __version__
from harness.environment import environment
from harness.journal import Journal, as_line
from harness.load import Subject
from harness.options import JOURNAL, JUDGED, PLANNED, PROBLEMS, RECORDS, now, option
from harness.provenance import Provenance, sources_digest
from harness.requirement import WORLDS
from harness.session import Judged
from harness.verdict import Header, Record

#: The key under which a worker's problems travel.
_PROBLEMS = "fsdp_conformance_problems"


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs tests for another one, which keeps the records."""
    return hasattr(config, "workerinput")


def has_workers(config: pytest.Config) -> bool:
    """Whether other processes will run the tests for this one."""
    return not is_worker(config) and bool(config.getoption("numprocesses", None))


def workers_of(config: Any) -> int:
    """How many processes run the tests of this run."""
    return int(config.workerinput["workercount"]) if is_worker(config) else 1


def subject_of(config: pytest.Config) -> Subject:
    """Who is judged in this run, and where."""
    return Subject(option(config, "implementation"), option(config, "backend"))


class Recorder:
    """The hooks that know of records. Registered once a session, since a report does not say whose it is."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._plan: list[str] = []
        self.provenance = Provenance()
        self._starting = threading.Lock()

    def start(self, judged: Judged, plan: Sequence[str]) -> None:
        """Open the record file and write the header: who, where, and every row that is planned; a worker only knows."""
        config = self._config
        config.stash[PLANNED] = len(plan)
        if is_worker(config):
            self._plan = list(plan)
            return
        try:
            config.stash[JOURNAL] = Journal(option(config, "record"))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[JOURNAL].write(
            Header(
                implementation=f"{judged.implementation.name} {judged.implementation.version}".strip(),
                backend=judged.backend.name,
                worlds=list(WORLDS) if option(config, "world") == "both" else [option(config, "world")],
                profile=str(settings._current_profile),
                level=option(config, "level"),
                plan=list(plan),
                suite_version=__version__,
                claims=sorted(map(str, judged.implementation.claims)),
                not_claimed={str(key): reason for key, reason in judged.implementation.not_claimed.items()},
                environment=environment(),
                command=" ".join(["pytest", *map(str, config.invocation_params.args)]),
                started=now(),
                seed=str(config.getoption("--hypothesis-seed", None) or "derandomized"),
                plan_digest=self.provenance.plan_digest,
                sources=sources_digest(),
                waiver_files=self.provenance.waiver_files,
                left_out=self.provenance.left_out,
            )
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the record that a report carries."""
        record = getattr(report, "fsdp_record", None)
        if record is not None and not is_worker(self._config):
            self._config.stash[RECORDS].append(record)
            self._config.stash[JOURNAL].write(record)

    # Between the processes of pytest-xdist.

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: Any) -> Generator[None, Any, Any]:
        """A record travels as a line of the record file, and with the first one the plan."""
        data = yield
        if data is not None and data.get("fsdp_record") is not None:
            data["fsdp_record"] = as_line(report.fsdp_record)
            data["fsdp_plan"], self._plan = self._plan, []
            data["fsdp_provenance"] = asdict(self.provenance)
        return _sendable(data)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> Generator[None, Any, Any]:
        """And is made of it again; the first worker to send one starts the record file."""
        plan, provenance = data.pop("fsdp_plan", []), data.pop("fsdp_provenance", {})
        report = yield
        if report is not None and isinstance(data.get("fsdp_record"), str):
            report.fsdp_record = Record.from_json(json.loads(data["fsdp_record"]))
            with self._starting:  # each worker is heard on a thread of its own
                if plan and JUDGED not in self._config.stash:
                    config = self._config
                    config.stash[JUDGED] = Judged(subject_of(config), ())
                    self.provenance = Provenance(**provenance)
                    self.start(config.stash[JUDGED], plan)
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Hear of a worker's problems: that a waiver matches nothing all of them say."""
        problems = self._config.stash[PROBLEMS]
        told = getattr(node, "workeroutput", {}).get(_PROBLEMS, [])
        problems += [problem for problem in told if problem not in problems]


def tell_problems(config: Any) -> None:
    """Send a worker's problems to the process that keeps the records."""
    config.workeroutput[_PROBLEMS] = _sendable(list(config.stash[PROBLEMS]))


def _sendable(value: Any) -> Any:
    """Lone surrogates, which what a subject says may hold, end a worker that sends them; they go escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    return type(value)(map(_sendable, value)) if type(value) in (list, tuple) else value
