"""Programs of which rank 1 dies or stops, at every phase: in, between and after collectives, and while leaving."""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.worlds.rank import Rank
from tests.worlds.programs.basic import FAULTY, _meet, add_up


def _strike(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1000)


def is_terminated(rank: Rank) -> None:
    """Rank 1's process is asked to end."""
    if rank.number == FAULTY:
        _strike(signal.SIGTERM)
    _meet()


def is_interrupted(rank: Rank) -> None:
    """Rank 1's process is sent what Ctrl-C sends."""
    if rank.number == FAULTY:
        _strike(signal.SIGINT)
    _meet()


def aborts(rank: Rank) -> None:
    """Rank 1's process gives up, as native code does when it finds itself broken."""
    if rank.number == FAULTY:
        os.abort()
    _meet()


def stops(rank: Rank) -> None:
    """Rank 1's process is stopped and can show nothing."""
    if rank.number == FAULTY:
        _strike(signal.SIGSTOP)
    _meet()


def is_killed_in_a_collective(rank: Rank) -> None:
    """Rank 1's process is killed by its busy peer, for which it waits in a collective."""
    pids = torch.zeros(rank.size, dtype=torch.int64)
    dist.all_gather_into_tensor(pids, torch.tensor([os.getpid()]))
    if rank.number == FAULTY:
        _meet()
    os.kill(int(pids[FAULTY]), signal.SIGKILL)
    time.sleep(1000)


def is_killed_after_the_last_collective(rank: Rank) -> None:
    """Rank 1's process is killed when all that is left to do is to return."""
    _meet()
    if rank.number == FAULTY:
        _strike(signal.SIGKILL)


def is_killed_with_shared_memory(rank: Rank) -> None:
    """Rank 1's process is killed while it holds a tensor in shared memory."""
    if rank.number == FAULTY:
        shared = torch.ones(1 << 16).share_memory_()
        assert shared.is_shared()
        _strike(signal.SIGKILL)
    _meet()


def kills_the_fork_server(rank: Rank) -> None:
    """Rank 1 kills the process from which all ranks were forked, and with which all of them die."""
    if rank.number == FAULTY:
        parent = os.getppid()
        assert "forkserver" in Path(f"/proc/{parent}/cmdline").read_text(), "this would kill the controller"
        os.kill(parent, signal.SIGKILL)
        time.sleep(1000)
    _meet()


def waits_the_first_time(rank: Rank, directory: str) -> dict[str, Any]:
    """Rank 1 writes its process and its fork server to a pipe, and waits; when they are run again, ranks add up.

    All ranks have started by then: who is struck earlier did not start.
    """
    _meet()
    if rank.number == FAULTY and not (has_run := Path(directory) / "has run").exists():
        has_run.touch()
        (Path(directory) / "pipe").write_text(f"{os.getpid()} {os.getppid()}\n")
        time.sleep(1000)
    return add_up(rank)


def exits_with_255(rank: Rank) -> None:
    """Rank 1 leaves with the exit code that stands for an unknown one where the fork server has died."""
    if rank.number == FAULTY:
        os._exit(255)
    _meet()


# In the middle of an answer.


def _end_halfway(end: Callable[[], Any]) -> None:
    """From now on, this process ends so when half of an answer is sent."""

    def send_half(self: Connection, message: bytes) -> None:
        os.write(self.fileno(), len(message).to_bytes(4, "big") + message[: len(message) // 2])
        end()

    Connection.send_bytes = send_half  # type: ignore[method-assign, assignment]


def is_killed_while_sending(rank: Rank) -> None:
    """All ranks meet; then rank 1's process is killed when half of its result is sent."""
    _meet()
    if rank.number == FAULTY:
        _end_halfway(lambda: _strike(signal.SIGKILL))


def exits_while_sending(rank: Rank) -> None:
    """All ranks meet; then rank 1's process leaves with code 0 when half of its result is sent."""
    _meet()
    if rank.number == FAULTY:
        _end_halfway(lambda: os._exit(0))


def hangs_while_sending(rank: Rank) -> None:
    """All ranks meet; then rank 1 sends half of its result, and then nothing."""
    _meet()
    if rank.number == FAULTY:
        _end_halfway(lambda: time.sleep(1000))


# While leaving.


def exits_at_exit(rank: Rank) -> None:
    """All is well, until the process of rank 1 leaves with an exit code."""
    if rank.number == FAULTY:
        atexit.register(os._exit, 7)


def is_killed_at_exit(rank: Rank) -> None:
    """All is well, until the process of rank 1 is killed in an exit handler."""
    if rank.number == FAULTY:
        atexit.register(os.kill, os.getpid(), signal.SIGKILL)
