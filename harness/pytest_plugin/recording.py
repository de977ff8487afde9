"""The records of a run: kept by the process that runs the tests, or by the controller of pytest-xdist for its workers.

worker: test ends ─▶ report with its record ─▶ one line of JSON ─▶ controller: record ─▶ record file

The first report of a worker has the header, too, for which the controller would have to import torch and the subject.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Generator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness.data.text import one_line, plural
from harness.pytest_plugin.options import has_workers, is_worker, option, subject_of
from harness.pytest_plugin.progress import print_progress
from harness.records.codec import as_line, decoded, escaped
from harness.records.reader import Run
from harness.records.record import Footer, Header, Record, Verdict
from harness.records.writer import UNWRITTEN, Journal, writable
from harness.worlds.base import WorldCannotStart

#: The keys under which a worker sends its problems, and what the user got wrong.
_PROBLEMS, _USAGE = "fsdp_conformance_problems", "fsdp_conformance_usage_error"
#: So many worlds that cannot start for the same reason end the run.
_MOST_START_FAILURES = 3
#: What differs between two start failures with the same cause: ranks, sizes, ports, process ids, addresses.
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


class Recorder:
    """Writes the record file. ``problems`` keep a run from being green; ``records`` are those of this process.

    ``header``, and ``most_workers``, how many have a use for the devices (None: any number), are known once ``begin``
    was called. It is registered once per session, since a report does not know its session.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.records: list[Record] = []
        self.problems: list[str] = []
        self._config = config
        self.header: Header | None = None
        self.most_workers: int | None = None
        self._journal: Journal | None = None
        self._footer: Footer | None = None
        self._is_sent = False
        self._started = time.time()
        self._start_failures: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Before workers start, see whether the record file can be written; without workers, ``begin`` does."""
        print_progress(self._config, lambda: self.header.plan if self.header else ())
        if has_workers(self._config):
            self._opened()

    def _opened(self) -> Journal:
        if self._journal is None:
            try:
                self._journal = Journal(option(self._config, "record"))
            except ValueError as error:
                raise pytest.UsageError(str(error)) from error
        return self._journal

    def begin(self, header: Header, most_workers: int | None) -> None:
        """Begin the record file with the header; a worker keeps it for its first report.

        Raises UsageError if the file cannot be written.
        """
        command = shlex.join(["pytest", *map(str, self._config.invocation_params.args)])
        self.header, self.most_workers = structs.replace(header, command=command), most_workers
        if not is_worker(self._config):
            self._opened()
            self._write(self.header)

    def _write(self, line: Header | Record) -> None:
        """Write a line; if that fails, end the run at once, since no later result would be kept."""
        try:
            self.problems += self._opened().write(line)
        except OSError as error:
            pytest.exit(str(error), returncode=UNWRITTEN)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the record that a report carries; the first one that comes from a worker has the header, too."""
        record = getattr(report, "fsdp_record", None)
        if record is None:
            return
        self.check_start(record)
        if is_worker(self._config):
            return
        if self.header is None:
            self.begin(report.fsdp_header, report.fsdp_workers)
        self.records.append(record)
        self._write(record)

    def check_start(self, record: Record) -> None:
        """The first world that cannot start is a problem of the run; the third for the same reason stops it.

        Workers stop themselves, too: each has more tests to run.
        """
        if record.cause != WorldCannotStart.cause:
            return
        reason = (record.message.splitlines() or [""])[0]
        cause = _NUMBERS.sub("#", reason)
        self._start_failures[cause] += 1
        if self._start_failures[cause] == 1 and not is_worker(self._config):
            subject = subject_of(self._config)
            doctor = ["doctor", "--backend", subject.backend, "--implementation", subject.implementation]
            line = shlex.join(["fsdp-conformance", *doctor])
            self.problems.append(f"worlds {one_line(reason)}; run `{line}` to see why")
        if self._start_failures[cause] == _MOST_START_FAILURES:
            for name in ("session", "dsession"):  # pytest-xdist does not look at the attribute of pytest's session
                session: Any = self._config.pluginmanager.get_plugin(name)
                if session is not None:
                    session.shouldstop = f"{_MOST_START_FAILURES} worlds could not start for the same reason"

    # Between the processes of pytest-xdist.

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: Any) -> Generator[None, Any, Any]:
        """A record is sent as a line of the record file, and with the first one the header."""
        data = yield
        if data is not None and data.get("fsdp_record") is not None:
            data["fsdp_record"] = self._as_line(report.fsdp_record)
            if self.header is not None and not self._is_sent:
                data["fsdp_header"], data["fsdp_workers"] = self._as_line(self.header), self.most_workers
                self._is_sent = True
        return escaped(data)

    def _as_line(self, line: Header | Record) -> str:
        line, problems = writable(line)
        self.problems += problems
        return as_line(line)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> Generator[None, Any, Any]:
        """And read back. This runs on a thread for each worker, so it writes nothing."""
        report = yield
        for name in ("fsdp_record", "fsdp_header"):
            if report is not None and isinstance(data.get(name), str):
                setattr(report, name, decoded(data[name].encode())[0])
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Take over a worker's problems, each once: all workers find the same waivers. A usage error ends the run."""
        output = getattr(node, "workeroutput", {})
        if _USAGE in output:
            raise pytest.UsageError(output[_USAGE])
        self.problems += [problem for problem in output.get(_PROBLEMS, []) if problem not in self.problems]

    # The end of the run.

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the footer; a run that tried no requirement, or has a problem, fails."""
        if is_worker(self._config):
            vars(self._config)["workeroutput"][_PROBLEMS] = escaped(self.problems)
        if self._journal is None or self.header is None or exitstatus == UNWRITTEN:
            return
        if all(record.verdict in (Verdict.NOT_CLAIMED, Verdict.NOT_RUN) for record in self.records):
            self.problems.append("no requirement was tried")
        red = sum(record.verdict.is_red for record in self.records)
        if session.testsfailed != red:
            counted = f"pytest counts {plural(session.testsfailed, 'failure')}, but {red} of the recorded results fail"
            self.problems.append(f"{counted}: see pytest's own output")
        if self.problems and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        try:
            self._end(self._journal, int(session.exitstatus))
        except OSError as error:
            self.problems.append(str(error))
            session.exitstatus = UNWRITTEN

    def run(self) -> Run | None:
        """The run as its record file has it; None if it has not begun."""
        whole = {record.nodeid: record for record in self.records}
        return None if self.header is None else Run(Path(), self.header, list(whole.values()), self._footer)

    def _end(self, journal: Journal, status: int) -> None:
        counts = Counter({record.nodeid: str(record.verdict) for record in self.records}.values())
        seconds = round(time.time() - self._started, 3)
        self._footer = Footer(utc_now(), seconds, status, list(self.problems), journal.digest, dict(counts))
        self.problems += journal.write(self._footer)
        journal.close()


RECORDER = pytest.StashKey[Recorder]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder."""
    config.stash[RECORDER] = Recorder(config)
    config.pluginmanager.register(config.stash[RECORDER])


def send_usage_error(config: pytest.Config, error: pytest.UsageError) -> None:
    """Send what a worker refuses to the controller, which shows it to the user: only workers collect tests."""
    vars(config)["workeroutput"][_USAGE] = escaped(str(error))


def utc_now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
