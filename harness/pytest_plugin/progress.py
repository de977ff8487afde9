"""What is printed while a run goes on: each failing result as it comes, and now and then how far the run is.

[34%] 340 of 986 results: 335 pass, 2 fail, 3 waived; 58 s, about 1 min 50 s left; now parity/general [threads]
fail: parity/exact [threads] rank 0: [0] 'loss' is 3.0, expected 1.5 (difference 1.5, allowed 0)
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any

import pytest

from harness.data.text import one_line, plural, seconds_text
from harness.records.causes import shared_causes
from harness.records.record import Record, Verdict

#: Seconds from one line to the next: in a log, and on a terminal.
IN_A_LOG, ON_A_TERMINAL = 15.0, 0.2


def result_line(record: Record) -> str:
    """A result in one line: its verdict, which requirement and world, and the first line of its message."""
    first = (record.message.splitlines() or [""])[0]
    return one_line(f"{record.verdict}: {record.requirement} [{record.world}] {first}")


def summary_lines(records: Iterable[Record]) -> list[str]:
    """What did not pass, at the end of a run: causes that several results may share, then each other result."""
    told = [record for record in records if record.verdict.is_red or record.verdict is Verdict.NOT_RUN]
    causes, lines = shared_causes(record for record in told if record.verdict.is_red), list[str]()
    for cause in causes:
        lines.append(one_line(f"fail: {plural(len(cause.records), 'result')}: {cause.words}"))
        lines.append("  " + one_line(", ".join(f"{record.requirement} [{record.world}]" for record in cause.records)))
    named = {record.nodeid for cause in causes for record in cause.records}
    return [*lines, *(result_line(record) for record in told if record.nodeid not in named)]


class Progress:
    """Counts results by verdict; ``planned`` is how many there will be. A result that comes again counts once."""

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self._verdicts: dict[str, Verdict] = {}

    def add(self, record: Record) -> str:
        """Count a result; the line to print at once if it is red and was not before, else ""."""
        before = self._verdicts.get(record.nodeid)
        self._verdicts[record.nodeid] = record.verdict
        if not record.verdict.is_red or (before is not None and before.is_red):
            return ""
        return result_line(record)

    def line(self, seconds: float, current: str = "") -> str:
        """The line after ``seconds``; ``current`` is what runs now. The time left is estimated from five results on."""
        done = len(self._verdicts)
        counts = Counter(self._verdicts.values())
        found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        percent = 100 * done // max(self.planned, done, 1)
        words = [f"[{percent}%] {done} of {self.planned} results{': ' if found else ''}{found}"]
        left = seconds / done * (self.planned - done) if done >= 5 else 0.0
        words.append(seconds_text(seconds) + (f", about {seconds_text(left)} left" if left > 0 else ""))
        return one_line("; ".join([*words, *([f"now {current}"] if current else [])]))


class LiveProgress:
    """The hooks that print, in the process that has the terminal; ``planned`` is known once the first result comes.

    On a terminal one line is overwritten; in a log, which keeps everything, lines are rarer.
    """

    def __init__(self, terminal: Any, planned: Callable[[], int]) -> None:
        self._terminal, self._planned = terminal, planned
        self._started = self._printed = time.monotonic()
        self._progress: Progress | None = None
        self._current = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note what runs now."""
        self._current = nodeid

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a result; print it if it is red, and how far the run is if that was not printed for a while."""
        record = getattr(report, "fsdp_record", None)
        if record is None:
            return
        self._progress = self._progress or Progress(self._planned())
        if red := self._progress.add(record):
            self._terminal.ensure_newline()
            self._terminal.write_line(red, red=True)
        now = time.monotonic()
        if now - self._printed >= (ON_A_TERMINAL if self._terminal.isatty else IN_A_LOG):
            self._printed = now
            self._print(self._progress.line(now - self._started, self._current))

    def _print(self, line: str) -> None:
        if self._terminal.isatty:
            self._terminal.rewrite(line[: shutil.get_terminal_size().columns - 1], erase=True)
            self._terminal.currentfspath = -2  # as pytest notes that the cursor is within a line
        else:
            self._terminal.ensure_newline()
            self._terminal.write_line(line)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: Any) -> Generator[None, Any, Any]:
        """No letter for a result: there would be a thousand."""
        status = yield
        if getattr(report, "fsdp_record", None) is None or not status:
            return status
        category, _, word = status
        return category, "", word


def print_progress(config: pytest.Config, planned: Callable[[], int]) -> None:
    """Print how the run goes if this process has a terminal, and neither ``-v``'s words nor ``-qq``'s silence."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and -1 <= config.get_verbosity() <= 0:
        config.pluginmanager.register(LiveProgress(terminal, planned))
