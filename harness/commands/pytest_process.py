"""pytest as a child process that ends properly, with a footer, when this process receives a signal to end.

    Ctrl-C, SIGTERM, SIGHUP ─▶ this process ─ SIGINT ─▶ pytest and its workers, in their own session ─▶ footer, status 2

A terminal sends Ctrl-C to one session only, so pytest gets each one once. A second one is passed on as well.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: pytest with our plugin. It finds modules of the current folder after all others: none there takes the place of ours.
PYTEST = (sys.executable, "-m", "fsdp_conformance.run_module", "pytest", "-p", "harness.pytest_plugin")
#: pytest's exit status where an option is wrong, or another run is writing the record file.
REFUSED = 4
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
#: What comes in place of a signal's number when pytest's time is up, and how many seconds it then may take to end.
_TIME_IS_UP, _GRACE = 0, 10.0


def run_pytest(arguments: Sequence[str], limit: float = 0.0, output: IO[bytes] | None = None) -> tuple[int, bool]:
    """Run pytest to its end: its exit status, as a shell has it, and whether this process received a signal to end.

    After ``limit`` seconds, if that is not 0, pytest is interrupted, and killed if it has not ended after ten more.
    ``output`` gets what it writes, in place of this process's own stdout and stderr.
    """
    is_ending, order = False, signal.SIGINT
    with _signals(limit) as numbers:
        child = _started([*PYTEST, *arguments], output)
        while (status := child.poll()) is None:
            if (number := next(numbers)) == signal.SIGCHLD:
                continue
            with suppress(ProcessLookupError):
                os.killpg(child.pid, order)
            is_ending, order = is_ending or number != _TIME_IS_UP, signal.SIGKILL if number == _TIME_IS_UP else order
    return status if status >= 0 else 128 - status, is_ending


def run_recorded(
    arguments: Sequence[str], record: Path, limit: float = 0.0, output: IO[bytes] | None = None
) -> tuple[int, bool, bool]:
    """Run pytest with a record file: what ``run_pytest`` returns, and whether the file is of this run.

    A run that pytest refuses leaves the file of an earlier one, or of another run that is writing it.
    """
    before = _stamp(record)
    status, is_ending = run_pytest([*arguments, "--record", str(record)], limit, output)
    return status, is_ending, status != REFUSED and _stamp(record) != before


def _stamp(record: Path) -> tuple[int, ...]:
    """Changes when the file is written."""
    try:
        found = record.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def _signals(limit: float) -> Iterator[Iterator[int]]:
    """The numbers of the signals received while the block runs, which have no other effect; none is lost.

    Python's own handlers would run only once a blocking call returns, if a signal came just before that.
    """
    caught = [number for number in _END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (*caught, signal.SIGCHLD)}
    wakeup = signal.set_wakeup_fd(writing)
    late = [limit, limit + _GRACE] if limit else []
    clocks = [threading.Timer(seconds, os.write, (writing, bytes([_TIME_IS_UP]))) for seconds in late]
    try:
        for clock in clocks:
            clock.start()
        yield (os.read(reading, 1)[0] for _ in itertools.count())
    finally:
        for clock in clocks:
            clock.cancel()
            clock.join()
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _started(command: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """A process in a session of its own that handles SIGINT, and receives one if this process is killed (on Linux)."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells start background processes with SIGINT ignored
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)

    return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, preexec_fn=prepare)
