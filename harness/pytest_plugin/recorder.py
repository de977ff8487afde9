"""Keeping the records of a run: in the one process that runs the tests, or in the one that pytest-xdist's workers tell.

worker: test ends ─▶ report with its record ─▶ one line of JSON ─▶ controller: record ─▶ record file
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import settings

from harness import __version__
from harness.data.kinds import WORLDS
from harness.pytest_plugin.environment import environment
from harness.pytest_plugin.judged import Judged
from harness.pytest_plugin.options import JOURNAL, JUDGED, PLANNED, PROBLEMS, RECORDS, now, option
from harness.records.codec import as_line, decoded, escaped
from harness.records.provenance import Provenance, sources_digest
from harness.records.record import SCHEMA, Header, Record
from harness.records.writer import UNWRITTEN, Journal, writable
from harness.vendor.load import Subject

#: The key under which a worker's problems travel.
_PROBLEMS = "fsdp_conformance_problems"
#: The key under which a worker says what the user got wrong.
_USAGE = "fsdp_conformance_usage_error"


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

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """See whether the record file can be written, before workers are started; without them, after collection."""
        if has_workers(self._config) and not self._config.option.collectonly:
            self._open()

    def _open(self) -> Journal:
        try:
            journal = self._config.stash[JOURNAL] = Journal(option(self._config, "record"))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        return journal

    def start(self, judged: Judged, plan: Sequence[str]) -> None:
        """Begin the record file with the header: who, where, and every row that is planned; a worker only knows."""
        config = self._config
        config.stash[PLANNED] = len(plan)
        if is_worker(config):
            self._plan = list(plan)
            return
        if JOURNAL not in config.stash:
            self._open()
        self._write(
            Header(
                schema=SCHEMA,
                implementation=judged.name,
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

    def _write(self, line: Header | Record) -> None:
        """Write a line; if that fails, end the run at once, since nothing that it finds from here on would be kept."""
        try:
            self._config.stash[PROBLEMS] += self._config.stash[JOURNAL].write(line)
        except OSError as error:
            pytest.exit(str(error), returncode=UNWRITTEN)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the record that a report carries; the first report of a worker has the plan, too."""
        record = getattr(report, "fsdp_record", None)
        if record is None or is_worker(self._config):
            return
        if getattr(report, "fsdp_plan", None) and JUDGED not in self._config.stash:
            self.provenance = Provenance(**report.fsdp_provenance)
            self._config.stash[JUDGED] = Judged(subject_of(self._config), ())
            self.start(self._config.stash[JUDGED], report.fsdp_plan)
        self._config.stash[RECORDS].append(record)
        self._write(record)

    # Between the processes of pytest-xdist.

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: Any) -> Generator[None, Any, Any]:
        """A record travels as a line of the record file, and with the first one the plan."""
        data = yield
        if data is not None and data.get("fsdp_record") is not None:
            record, problems = writable(report.fsdp_record)
            self._config.stash[PROBLEMS] += problems
            data["fsdp_record"] = as_line(record)
            data["fsdp_plan"], self._plan = self._plan, []
            data["fsdp_provenance"] = asdict(self.provenance)
        return escaped(data)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> Generator[None, Any, Any]:
        """And is made of it again. This runs on a thread for each worker, so it writes nothing."""
        report = yield
        if report is not None and isinstance(data.get("fsdp_record"), str):
            report.fsdp_record = decoded(data["fsdp_record"].encode())[0]
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Hear of a worker's problems: that a waiver matches nothing all of them say. A usage error ends the run."""
        output = getattr(node, "workeroutput", {})
        if _USAGE in output:
            raise pytest.UsageError(output[_USAGE])
        problems, told = self._config.stash[PROBLEMS], output.get(_PROBLEMS, [])
        problems += [problem for problem in told if problem not in problems]


def tell_problems(config: Any) -> None:
    """Send a worker's problems to the process that keeps the records."""
    config.workeroutput[_PROBLEMS] = escaped(list(config.stash[PROBLEMS]))


def tell_usage_error(config: Any, error: pytest.UsageError) -> None:
    """Send what a worker refuses to the process whose user can mend it: workers alone collect tests."""
    config.workeroutput[_USAGE] = escaped(str(error))
