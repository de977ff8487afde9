"""pytest as a child process that ends in order, with its footer, when this process is told to end.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_TOLD_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def run_pytest(arguments: Sequence[str]) -> tuple[int, bool]:
    """Run pytest to its end: its exit status, as a shell has it, and whether this process was told to end meanwhile."""
    is_told = False
    with _signals() as numbers:
        child = _started([sys.executable, "-m", "pytest", *arguments])
        while (status := child.poll()) is None:
            if next(numbers) != signal.SIGCHLD:
                is_told = True
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGINT)
    return status if status >= 0 else 128 - status, is_told


@contextmanager
def _signals() -> Iterator[Iterator[int]]:
    """The numbers of the signals that come while the block runs, and have no other effect: none is lost.

    Python's own handlers would run only once a blocking call returns, if a signal came just before that.
    """
    told = [number for number in _TOLD_TO_END if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (*told, signal.SIGCHLD)}
    wakeup = signal.set_wakeup_fd(writing)
    try:
        yield (os.read(reading, 1)[0] for _ in itertools.count())
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, which hears SIGINT, and is sent one if this process is killed (on Linux)."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells have what they start in the background ignore it
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)

    return subprocess.Popen(command, start_new_session=True, preexec_fn=prepare)
