"""Processes below a process: what a rank has started, however far it went to get away.

A child that makes a session of its own is no member of its rank's process group any more, and one whose parent ends
is given to another. So each worker adopts the orphans below it, and is searched from the top before it is killed::

    worker 10 (group 10)  ─▶  sh 11 (group 10, has ended)  ─▶  daemon 12 (group 12)     below(10) == [12]
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress

from harness.worlds.system.disturbances import fork_server

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, processes below this one whose parents end become children of this one. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int | str = "self") -> list[int]:
    """The children of a process, those that have ended and not been waited for among them; none where none can tell."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:  # a thread may end meanwhile
                found += map(int, file.read().split())
    return found


def below(pid: int) -> list[int]:
    """All processes below ``pid``, parents before their children."""
    found = children(pid)
    for child in found:  # grows as it goes
        found += children(child)
    return found


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes by number; those that are gone do not matter."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_orphans(workers: Iterable[int]) -> None:
    """Kill what workers left behind that died by themselves: the fork server has adopted it."""
    pid = fork_server()
    if pid is not None:
        kept = set(workers)
        for orphan in children(pid):
            if orphan not in kept:
                kill_all([orphan, *below(orphan)])
