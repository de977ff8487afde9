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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def run_pytest(arguments: Sequence[str]) -> tuple[int, bool]:
    """Run pytest to its end: its exit status, as a shell has it, and whether this process received a signal to end."""
    is_ending = False
    with _signals() as numbers:
        child = _started([sys.executable, "-m", "pytest", *arguments])
        while (status := child.poll()) is None:
            if next(numbers) != signal.SIGCHLD:
                is_ending = True
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGINT)
    return status if status >= 0 else 128 - status, is_ending


@contextmanager
def _signals() -> Iterator[Iterator[int]]:
    """The numbers of the signals received while the block runs, which have no other effect; none is lost.

    Python's own handlers would run only once a blocking call returns, if a signal came just before that.
    """
    caught = [number for number in _END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (*caught, signal.SIGCHLD)}
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
    """A process in a session of its own that handles SIGINT, and receives one if this process is killed (on Linux)."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells start background processes with SIGINT ignored
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)

    return subprocess.Popen(command, start_new_session=True, preexec_fn=prepare)
