"""What is printed at the end of a run: what did not pass, and, as the last line, what the run comes to."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

from harness.data.broken_pipe import NO_READER, drop_output
from harness.data.text import one_line
from harness.pytest_plugin.options import is_worker, option
from harness.pytest_plugin.progress import summary_lines
from harness.pytest_plugin.recording import RECORDER
from harness.records.record import Verdict
from harness.records.standing import State, standing

#: What pytest lists at the end unless ``-r`` says otherwise: failures and errors.
_REPORTED = "fE"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Counts by verdict, what did not pass, problems, and where the records are.

    pytest's own list of failures, by node id, is left out, unless ``-r`` asks for one or others failed, too.
    """
    run = config.stash[RECORDER].run()
    if run is None:
        return
    if config.option.reportchars == _REPORTED and not _other_failures(terminalreporter):
        terminalreporter.reportchars = ""
    terminalreporter.section(f"FSDP conformance of {run.header.subject}")
    counts = {verdict: sum(record.verdict is verdict for record in run.records) for verdict in Verdict}
    terminalreporter.line("  ".join(f"{verdict}: {count}" for verdict, count in counts.items() if count))
    for line in summary_lines(run.records):
        terminalreporter.line(line)
    for problem in config.stash[RECORDER].problems:
        terminalreporter.line(one_line(f"problem: {problem}"), red=True)
    if option(config, "record"):
        terminalreporter.line(f"records: {option(config, 'record')}")


def _other_failures(terminal: Any) -> bool:
    """Whether something failed or went wrong that is no result of a requirement."""
    reports = [*terminal.getreports("failed"), *terminal.getreports("error")]
    return any(getattr(report, "fsdp_record", None) is None for report in reports)


class Ending:
    """Prints the verdict, in the process that has the terminal; if nothing reads what is printed, ends the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_read = True
        self._session: pytest.Session | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep what has the exit status."""
        self._session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        """Print the verdict below pytest's own last line."""
        try:
            yield
            self._print_verdict()
        except BrokenPipeError:
            self._lose_reader()

    def _print_verdict(self) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        run = self._config.stash[RECORDER].run()
        if run is None or terminal is None:
            return
        verdict = standing(run)
        line = one_line(f"{run.header.subject}: {verdict}")
        terminal.write_line(line, bold=True, **{"green" if verdict.state is State.CONFORMS else "red": True})
        terminal.flush()

    @pytest.hookimpl(tryfirst=True)  # before pytest prints it, to where nothing is read
    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> bool | None:
        """A broken pipe ends the run in order."""
        if not isinstance(excinfo.value, BrokenPipeError):
            return None
        self._lose_reader()
        self._config.stash[RECORDER].problems.append(f"the run: {NO_READER}")
        return True

    def _lose_reader(self) -> None:
        """One sentence, in place of a traceback that nothing would read; what is printed later goes nowhere."""
        if self._session is not None:
            self._session.exitstatus = pytest.ExitCode.INTERRUPTED
        if not self._is_read:
            return
        self._is_read = False
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            capture.stop_global_capturing()  # which would put stdout back
        drop_output()
        print(f"pytest: {NO_READER}", file=sys.stderr)


def pytest_configure(config: pytest.Config) -> None:
    """Register it where the terminal is."""
    if not is_worker(config):
        config.pluginmanager.register(Ending(config))
