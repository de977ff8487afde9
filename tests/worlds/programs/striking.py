"""Striking at our own processes in the middle of a run, as the kernel, a shell or a scheduler may.

rank 1 writes its process and its fork server to a pipe, and waits   ─▶   strike(rank, server)   ─▶   what now?
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.worlds.system.disturbances import is_stopped
from tests.pipes import heard, named_pipe
from tests.worlds.programs.hanging import deadline_when

Strike = Callable[[int, int], None]


def kill_the_server(rank: int, server: int) -> None:
    """As the out-of-memory killer does."""
    os.kill(server, signal.SIGKILL)


def stop_the_rank(rank: int, server: int) -> None:
    """As a shell or a scheduler does."""
    stop(rank)


def stop(pid: int) -> None:
    """Stop a process, and see it stopped."""
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.002)  # only a child of this process could be waited for


@contextmanager
def striking(directory: Path, strike: Strike) -> Iterator[None]:
    """Strike when rank 1 says that it runs, see ``waits_the_first_time``: at its process or its fork server."""
    with named_pipe(directory / "pipe") as pipe:
        thread = threading.Thread(target=lambda: strike(*map(int, heard(pipe).split())), daemon=True)
        thread.start()
        yield
        thread.join()


@contextmanager
def stopping(directory: Path) -> Iterator[None]:
    """Stop rank 1 when it says that it runs; then the deadline of that run has passed."""
    stopped: list[int] = []

    def strike(rank: int, server: int) -> None:
        stop_the_rank(rank, server)
        stopped.append(rank)

    with striking(directory, strike), deadline_when(lambda: bool(stopped and stopped.pop())):
        yield


@contextmanager
def killing(directory: Path) -> Iterator[None]:
    """Kill the fork server when rank 1 says that it runs."""
    with striking(directory, kill_the_server):
        yield
