"""What the terminal says while a run goes on: how far it is, what runs now, and each red row as it comes.

On a terminal one line is written over and over; in a log, which keeps everything, a line comes now and then. pytest's
own letters, of which a suite makes a thousand, are left out; with ``-v`` they are words, a line a row, and stay.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from typing import Any

import pytest

from harness.pytest_plugin.options import PLANNED
from harness.pytest_plugin.progress import Progress

#: Seconds from one line to the next: in a log, and on a terminal.
IN_A_LOG, ON_A_TERMINAL = 15.0, 0.2


class Live:
    """The hooks, for the process that has the terminal."""

    def __init__(self, config: pytest.Config, terminal: Any) -> None:
        self._config, self._terminal = config, terminal
        self._started = self._said = time.monotonic()
        self._progress: Progress | None = None
        self._at = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note what runs now."""
        self._at = nodeid

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a row; say it if it is red, and how far the run is if that was not said for a while."""
        record = getattr(report, "fsdp_record", None)
        if record is None:
            return
        if self._progress is None:
            self._progress = Progress(self._config.stash.get(PLANNED, 0))
        red = self._progress.add(record)
        if red:
            self._terminal.ensure_newline()
            self._terminal.write_line(red, red=True)
        on_a_terminal, now = self._terminal.isatty, time.monotonic()
        if now - self._said >= (ON_A_TERMINAL if on_a_terminal else IN_A_LOG):
            self._said = now
            self._say(self._progress.line(now - self._started, self._at), on_a_terminal)

    def _say(self, line: str, over: bool) -> None:
        if over:
            self._terminal.rewrite(line[: shutil.get_terminal_size().columns - 1], erase=True)
            self._terminal.currentfspath = -2  # as pytest notes that the cursor is within a line
        else:
            self._terminal.ensure_newline()
            self._terminal.write_line(line)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: Any) -> Generator[None, Any, Any]:
        """No letter for a row; words, which ``-v`` asks for, stay."""
        status = yield
        if getattr(report, "fsdp_record", None) is None or not status:
            return status
        category, _, word = status
        return category, "", word


def watch(config: pytest.Config) -> None:
    """Say how the run goes, if this process has a terminal and nobody asked for rows of words, or for silence."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and -1 <= config.get_verbosity() <= 0:
        config.pluginmanager.register(Live(config, terminal))
