"""The supervisor: starts the process that asks, waits for each answer a limited time, and goes on after it.

child says  at 5 · row 5 found · at 6 · (dies by SIGSEGV)   ─▶  row 6 is wrong: "killed by SIGSEGV, …"
next child asks from row 7 on
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.data.text import one_line, signal_name
from harness.doctor.probes.imports import AUTOLOAD
from harness.doctor.rows import GROUPED, Finding, Row, State
from harness.doctor.table import all_rows

#: How long one question may take, and how many such the whole may take: a minute, by default.
PATIENCE = 20.0
_WHOLE = 3.0
_MOST_BYTES = 4 << 20
#: How long a process that hangs may take to show its stack, which ends with one of these lines.
_STACK_SECONDS = 10.0
_OUTERMOST = ("in _run_module_as_main\n", "  ...\n")
_NOTHING_FURTHER = {"0a": "the backend does not load (row 0a)"}


class Refused(Exception):
    """The command line asks for what cannot be."""


@dataclass
class Examination:
    """What was found of each row, and facts about the subject as far as they are known.

    ``patience`` is how long a question may take, ``whole`` how long all of them (default: three such), in seconds. What
    ``findings`` holds from the start is not asked.
    """

    implementation: str
    backend: str
    patience: float = PATIENCE
    whole: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    ran_out: bool = False
    _rows: dict[str, Row] = field(default_factory=all_rows)
    _autoload: bool = True
    _at: str = ""

    def run(self) -> Examination:
        """Ask all rows. Raises Refused if the command line is wrong."""
        began = time.monotonic()
        self.whole = self.whole or _WHOLE * self.patience
        until = began + self.whole
        while not self._is_over() and time.monotonic() < until:
            self._one_child(until)
        for number in self._left():
            reason = next((words for row, words in _NOTHING_FURTHER.items() if self._failed(row)), "")
            self.ran_out = self.ran_out or not reason
            words = reason or f"{self.whole:g} s were over: give more with --patience"
            self.findings[number] = Finding(State.NOT_TRIED, words)
        self.seconds = time.monotonic() - began
        return self

    def _left(self) -> list[str]:
        return [number for number in self._rows if number not in self.findings]

    def _failed(self, number: str) -> bool:
        return number in self.findings and self.findings[number].state in (State.MISSING, State.WRONG)

    def _is_over(self) -> bool:
        return not self._left() or any(self._failed(number) for number in _NOTHING_FURTHER)

    def _one_child(self, until: float) -> None:
        """Start a process, and hear it to its end; what it was at when it died or hung is found wrong."""
        self._at = ""
        with tempfile.TemporaryFile() as log, _Process(self._orders(), self._autoload, log) as process:
            is_done = process.hear(self._take, self._limit, until)
            if is_done:
                return
            words, is_hang = process.end()
        if time.monotonic() >= until and is_hang:
            words += f"; {self.whole:g} s were over"
        self._blame(words)

    def _blame(self, words: str) -> None:
        number = self._at if self._at and self._at not in self.findings else next(iter(self._left()), "")
        if self._at and self._at in self.findings:  # died between two rows, or on loading once more
            words = f"after row {self._at}: {words}"
        if number:
            self._set(number, Finding(State.WRONG, one_line(words)))

    def _set(self, number: str, found: Finding) -> None:
        self.findings[number] = found
        if number == "29" and found.state in (State.MISSING, State.WRONG):
            self._autoload = False

    def _orders(self) -> dict[str, Any]:
        failed = [number for number in self.findings if self._failed(number)]
        subject = {"implementation": self.implementation, "backend": self.backend}
        return {**subject, "patience": self.patience, "done": list(self.findings), "failed": failed}

    def _limit(self) -> float:
        """How long the process may say nothing: ranks that hang are to be shown by their world before that."""
        row = self._rows.get(self._at)
        if row is None or row.number == "29":
            return max(self.patience, PATIENCE)  # torch itself may come from a slow disk
        return 2 * self.patience if row is not None and row.subject in GROUPED else self.patience

    def _take(self, message: dict[str, Any]) -> bool:
        """What the child says; True at its end. It may have run anybody's code: nothing else is believed."""
        if "refused" in message:
            raise Refused(one_line(str(message["refused"])))
        if isinstance(message.get("facts"), dict):
            self.facts = _plain(message["facts"])
        if isinstance(message.get("at"), str):
            self._at = message["at"] if message["at"] in self._rows else self._at
        if (number := message.get("row")) in self._rows and number not in self.findings:
            self._set(number, _finding(message))
            return self._is_over() or (number == "29" and not self._autoload)
        return message.get("end") is True or message.get("again") is True


def _finding(message: dict[str, Any]) -> Finding:
    try:
        return Finding(State(message["state"]), one_line(str(message["said"])), float(message["seconds"]))
    except (KeyError, TypeError, ValueError):
        return Finding(State.WRONG, "answered something that is no finding")


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Short texts, numbers, and lists of short texts."""
    plain: dict[str, Any] = {}
    for key in ("name", "device_type", "process_group", "torch"):
        plain[key] = one_line(str(facts.get(key, "")), 100)
    plain["ranks"] = facts["ranks"] if isinstance(facts.get("ranks"), int) else 0
    lacks = facts.get("lacks")
    plain["lacks"] = [one_line(str(word), 100) for word in lacks[:50]] if isinstance(lacks, list) else []
    return plain


class _Process:
    """One process that asks, in a session of its own, so that all it starts can be killed with it."""

    def __init__(self, orders: dict[str, Any], autoload: bool, log: Any) -> None:
        self._orders, self._autoload, self._log = orders, autoload, log
        self._buffer, self._taken = b"", 0

    def __enter__(self) -> _Process:
        self._wire, theirs = os.pipe()
        root = str(Path(__file__).resolve().parent.parent.parent)
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
        environment = {**os.environ, "PYTHONPATH": path, **({} if self._autoload else {AUTOLOAD: "0"})}
        line = [sys.executable, "-m", "harness.doctor.child", str(theirs), json.dumps(self._orders)]
        try:
            self._process = subprocess.Popen(
                line,
                pass_fds=(theirs,),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
            )
        finally:
            os.close(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._wire)

    def hear(self, take: Any, limit: Any, until: float) -> bool:
        """Hand on what is said. True when the child has said its last, False when it died or was silent too long."""
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wire, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now > min(until, heard + limit()):
                    return False
                if selector.select(0.1):
                    data = os.read(self._wire, 1 << 16)
                    heard = time.monotonic()
                    if any(take(message) for message in self._messages(data)):
                        return True
                    if not data:
                        return False
                elif self._process.poll() is not None:  # what it has forked may hold the pipe open
                    return False

    def _messages(self, data: bytes) -> list[dict[str, Any]]:
        self._taken += len(data)
        if self._taken > _MOST_BYTES:
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(line)
                if isinstance(message, dict):
                    messages.append(message)
        return messages

    def end(self) -> tuple[str, bool]:
        """How it ended, or where it hangs; kills it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.5)
            return f"{_exit_words(code)}{self._last_words()}", False
        self._show_stack()
        return f"did not return in time{self._last_words()}", True

    def _show_stack(self) -> None:
        self._process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + _STACK_SECONDS
        while not self._text().endswith(_OUTERMOST) and time.monotonic() < until:
            time.sleep(0.02)  # a file cannot be waited for, and the dump is written piece by piece

    def _text(self) -> str:
        """The last that was written to the log."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")

    def _last_words(self) -> str:
        """Where it was, by the stack that faulthandler wrote; else the last line that it wrote."""
        text = self._text()
        frames = re.findall(r'^  File "(.*)", line (\d+) in (\S+)$', text, re.MULTILINE)
        if frames:
            file, line, function = frames[0]
            return f", in {function} ({file}:{line})"
        lines = [line for line in text.splitlines() if line.strip()]
        return f": {lines[-1]}" if lines else ""


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"ended the process with exit code {code}"
    return f"killed the process by {signal_name(-code)}"
