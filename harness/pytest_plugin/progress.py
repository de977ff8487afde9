"""What is printed while a run goes on: each failing result as it comes, and now and then how far the run is.

[34%] 340 of 986 results in 58 s, about 1 min 50 s left: 335 pass, 2 fail, 3 waived; now parity/general [threads]
fail: parity/exact [threads] rank 0: [0] 'loss' is 3.0, expected 1.5 (difference 1.5, allowed 0)
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import pytest

from harness.data.text import one_line, plural, seconds_text
from harness.pytest_plugin.planned import Planned, name_of, planned_results
from harness.records.asked import distinctive, passing_ends
from harness.records.causes import shared_causes
from harness.records.record import Record, Verdict

#: Seconds from one line to the next: in a log, and on a terminal.
IN_A_LOG, ON_A_TERMINAL = 15.0, 0.2


#: From so many results on, the time left is estimated.
_FEW = 5


def result_line(record: Record) -> str:
    """A result in one line: its verdict, which requirement and world, and the first line of its message."""
    return one_line(f"{record.verdict}: {name_of(record.requirement, record.world)} {_first_line(record)}")


def _first_line(record: Record) -> str:
    return (record.message.splitlines() or [""])[0]


def summary_lines(records: Iterable[Record]) -> list[str]:
    """What did not pass, at the end of a run: causes that several results may share, other failures, what was not run.

    Results that were not run are together by reason, those of most results first.
    """
    records = list(records)
    red = [record for record in records if record.verdict.is_red]
    causes, passing, lines = shared_causes(red), passing_ends(records), list[str]()
    for cause in causes:
        found = distinctive(cause.records, passing) if cause.is_error else []
        asked = f"; {found[0]}" if found else ""
        lines += _together(Verdict.FAIL, f"{one_line(cause.words, 240)}{asked}", cause.records)
    named = {record.nodeid for cause in causes for record in cause.records}
    lines += [result_line(record) for record in red if record.nodeid not in named]
    idle: dict[str, list[Record]] = {}
    for record in records:
        if record.verdict is Verdict.NOT_RUN:
            idle.setdefault(_first_line(record), []).append(record)
    for reason, alike in sorted(idle.items(), key=lambda item: -len(item[1])):
        lines += _together(Verdict.NOT_RUN, reason, alike)
    return lines


def _together(verdict: Verdict, why: str, alike: Iterable[Record]) -> list[str]:
    names = [name_of(record.requirement, record.world) for record in alike]
    return [one_line(f"{verdict}: {plural(len(names), 'result')}: {why}"), "  " + one_line(", ".join(names))]


class Progress:
    """Counts results by verdict, of those ``planned``, by node id. A result that comes again counts once."""

    def __init__(self, planned: Mapping[str, Planned]) -> None:
        self.planned = planned
        self._verdicts: dict[str, Verdict] = {}

    def add(self, record: Record) -> str:
        """Count a result; the line to print at once if it is red and was not before, else ""."""
        before = self._verdicts.get(record.nodeid)
        self._verdicts[record.nodeid] = record.verdict
        if not record.verdict.is_red or (before is not None and before.is_red):
            return ""
        return result_line(record)

    def line(self, seconds: float, current: str = "", is_over: bool = False) -> str:
        """The line after ``seconds``; ``current`` is the node id of what runs now. The least important comes last.

        Of a run that ``is_over``, however it ended, no time is left.
        """
        done, all_of_them = len(self._verdicts), len(self.planned)
        percent = 100 * done // max(all_of_them, done, 1)
        left = 0.0 if is_over else self._seconds_left(seconds)
        time_left = f", about {seconds_text(left)} left" if left > 0 else ""
        counts = Counter(self._verdicts.values())
        found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        words = f"[{percent}%] {done} of {plural(all_of_them, 'result')} in {seconds_text(seconds)}{time_left}"
        now = f"; now {self.planned[current].name}" if current in self.planned else ""
        return one_line(f"{words}{': ' if found else ''}{found}{now}")

    def _seconds_left(self, seconds: float) -> float:
        """At the pace so far, for what the results to come are expected to take, compared with those that came."""
        if len(self._verdicts) < _FEW:
            return 0.0
        expected = sum(each.seconds for each in self.planned.values())
        came = sum(self.planned[nodeid].seconds for nodeid in self._verdicts if nodeid in self.planned)
        return seconds / came * (expected - came) if came else 0.0


class LiveProgress:
    """The hooks that print, in the process that has the terminal; ``plan`` is known once the first result comes.

    On a terminal one line is overwritten; in a log, which keeps everything, lines are rarer. Where ``is_shown`` is
    False, as with ``-v``, pytest names each result itself; the id of its requirement stands with its outcome then.
    """

    def __init__(self, terminal: Any, plan: Callable[[], Iterable[str]], is_shown: bool) -> None:
        self._terminal, self._plan, self._is_shown = terminal, plan, is_shown
        self._started: float | None = None
        self._printed = 0.0
        self._progress: Progress | None = None
        self._current = ""
        self._is_over = False
        if is_shown:
            terminal.showfspath = False  # pytest would print the name of each file in the line that is ours

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note what runs now, and when the first test began."""
        self._current = nodeid
        if self._started is None:
            self._started = self._printed = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a result; print it if it is red, and how far the run is if that was not printed for a while."""
        record = getattr(report, "fsdp_record", None)
        if record is None or not self._is_shown:
            return
        self._progress = self._progress or Progress(planned_results(self._plan()))
        if red := self._progress.add(record):
            self._terminal.ensure_newline()
            self._terminal.write_line(red, red=True)
        if time.monotonic() - self._printed >= (ON_A_TERMINAL if self._terminal.isatty else IN_A_LOG):
            self._print(self._progress, self._current)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """At the end, print how it ended, and let pytest's summary have its words."""
        try:
            return (yield)
        finally:
            self._is_over = True
            if self._progress is not None:
                self._print(self._progress, "")

    def _print(self, progress: Progress, current: str) -> None:
        assert self._started is not None, "a test has begun"
        self._printed = time.monotonic()
        line = progress.line(self._printed - self._started, current, self._is_over)
        if self._terminal.isatty:
            self._terminal.rewrite(line[: shutil.get_terminal_size().columns - 1], erase=True)
            self._terminal.currentfspath = -2  # as pytest notes that the cursor is within a line
        else:
            self._terminal.ensure_newline()
            self._terminal.write_line(line)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: Any) -> Generator[None, Any, Any]:
        """No letter and no word for a result that our lines count; else its requirement beside pytest's word."""
        status = yield
        record = getattr(report, "fsdp_record", None)
        if record is None or not status:
            return status
        category, letter, word = status
        if self._is_shown and not self._is_over:
            return category, "", ""
        if isinstance(word, tuple) or (category == "skipped" and self._is_over):  # pytest tells those of a file at once
            return status
        return category, letter, f"{word} {one_line(record.requirement)}"


def print_progress(config: pytest.Config, plan: Callable[[], Iterable[str]]) -> None:
    """Print how the run goes if this process has a terminal, and neither ``-v``'s words nor ``-qq``'s silence."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        is_shown = -1 <= config.get_verbosity() <= 0
        config.pluginmanager.register(LiveProgress(terminal, plan, is_shown))
