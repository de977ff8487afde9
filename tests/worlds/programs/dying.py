"""Programs of which rank 1 dies, hangs or goes on where more than one deed of one rank is needed to show it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.worlds.rank import Rank
from tests.worlds.programs.basic import FAULTY, _meet, add_up


def is_killed_in_a_collective(rank: Rank) -> None:
    """Rank 1's process is killed by its busy peer, for which it waits in a collective."""
    pids = torch.zeros(rank.size, dtype=torch.int64)
    dist.all_gather_into_tensor(pids, torch.tensor([os.getpid()]))
    if rank.number == FAULTY:
        _meet()
    os.kill(int(pids[FAULTY]), signal.SIGKILL)
    time.sleep(1000)


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


def meets_and_sleeps(rank: Rank) -> None:
    """Rank 1 joins a collective and then sleeps, before anybody could go on who waited for it."""
    _meet()
    if rank.number == FAULTY:
        time.sleep(1000)
    _meet()


def locks_itself_out(rank: Rank) -> None:
    """Rank 1 waits for a lock that it holds."""
    if rank.number == FAULTY:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    _meet()


def waits_for_a_key(rank: Rank) -> None:
    """Rank 1 waits in the store for what is never written there."""
    if rank.number == FAULTY:
        dist.distributed_c10d._get_default_store().get("never written")
    _meet()


def swallows_everything(rank: Rank) -> None:
    """Rank 0 raises; rank 1 takes no exception for an answer and tries for ever."""
    while rank.number == FAULTY:
        try:
            dist.barrier()
        except BaseException:
            continue
    raise MemoryError("out of memory")


# What fails before a program is there.


class ArrivesAs:
    """Travels to ranks as a call of ``function``."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        return self.function, ()


def _is_faulty() -> bool:
    """Whether this process is rank 1's; that of a thread world is everybody's."""
    return os.environ.get("RANK", str(FAULTY)) == str(FAULTY)


def missing_module() -> None:
    """On rank 1, a module that is not there."""
    if _is_faulty():
        raise ImportError("no such module on this rank")


def leaving_module() -> None:
    """On rank 1, a module whose import ends the process."""
    if _is_faulty():
        os._exit(5)


def takes(rank: Rank, arrived: Any) -> None:
    """Whatever has arrived, meet."""
    _meet()
