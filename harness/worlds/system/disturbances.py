"""What can happen to our own processes from outside: the fork server is killed, or a process is stopped by a signal.

Rank processes die with the fork server that started them (see ``workers/worker.py``), and their exit codes are lost::

    kill -9 FORK_SERVER   ─▶   its end of each rank's pipe closes, with no exit code in it   ─▶   is_orphaned(pipe)
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import select
import signal
from multiprocessing.connection import wait

from harness.data.text import exit_words

#: How long a process that has closed its files may take to end, in seconds.
_END_SECONDS = 10.0


def fork_server() -> int | None:
    """The process id of this process' fork server; None if it has started none."""
    server = getattr(multiprocessing.forkserver, "_forkserver", None)
    return getattr(server, "_forkserver_pid", None)


def is_orphaned(pipe: int) -> bool:
    """Whether the fork server has closed its end of ``pipe``, and nothing that it wrote is left to be read."""
    look = select.poll()
    look.register(pipe, select.POLLIN)
    return any(not event & select.POLLIN for _, event in look.poll(0))


def death_of_server(pid: int) -> str:
    """How the fork server ``pid`` died, in words; "" if it lives. To be asked once it has closed its files."""
    try:
        watched = os.pidfd_open(pid)
        try:
            wait([watched], _END_SECONDS)
        finally:
            os.close(watched)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, AttributeError):  # another one has replaced it already; or this system cannot tell
        return "the fork server died"
    if ended is None:
        return ""
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    return f"the fork server died ({exit_words(code)})"


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process; False where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def end_stopped_server() -> bool:
    """Kill this process' fork server if it is stopped, since it would never answer; whether it was."""
    pid = fork_server()
    if pid is None or not is_stopped(pid):
        return False
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # only then is another one started
    return True
