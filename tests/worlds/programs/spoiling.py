"""Programs that spoil their process for the next one, or use up what it has; and one that looks whether all is well."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from harness.worlds.rank import Rank
from tests.worlds.programs.basic import FAULTY, _meet

_held: list[Any] = []


def looks_around(rank: Rank) -> dict[str, Any]:
    """What a program finds in its process, in plain data; the same for each that is unharmed."""
    total = torch.full((3,), float(rank.number + 1))
    dist.all_reduce(total)
    return {
        "total": total,
        "directory": os.getcwd(),
        "default dtype": torch.get_default_dtype(),
        "environment": sorted(name for name in os.environ if name.startswith("FSDP_")),
        "paths": list(sys.path),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "limits": [resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)],
        "recursion": sys.getrecursionlimit(),
        "collects garbage": gc.isenabled(),
        "functions": [str(function) for function in (time.time, time.monotonic, time.sleep)],
        "all_reduce": dist.all_reduce.__qualname__,
        "mask": _mask(),
        "output": [os.path.basename(os.readlink(f"/proc/self/fd/{number}")) for number in range(3)],
        "held": len(_held),
    }


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove_directory() -> None:
    os.chdir(tempfile.mkdtemp())
    os.rmdir(os.getcwd())


def _patch_all_reduce() -> None:
    dist.all_reduce = lambda *_, **__: None


def _patch_clock() -> None:
    time.time = lambda: 0.0


def _keep_files() -> None:
    _held.extend(os.open("/dev/zero", os.O_RDONLY) for _ in range(3))


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _leave_thread() -> None:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


SPOIL: dict[str, Callable[[], Any]] = {
    "working directory": lambda: os.chdir("/"),
    "working directory, once removed": _remove_directory,
    "umask": lambda: os.umask(0o077),
    "environment": lambda: os.environ.update(FSDP_TEST_SPOILT="1"),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "sys.path": lambda: sys.path.insert(0, "/nowhere"),
    "signal handlers": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "recursion limit": lambda: sys.setrecursionlimit(5000),
    "garbage collection": gc.disable,
    "resource limits": _limit_files,
    "open files": _keep_files,
    "time.time": _patch_clock,
    "torch.distributed.all_reduce": _patch_all_reduce,
    "Python threads": _leave_thread,
    "child processes": lambda: subprocess.Popen(["sleep", "1000"]),
}


def spoils(rank: Rank, what: str) -> None:
    """Rank 1 changes one thing of its process for good. Only where signals can be handled: on the main thread."""
    if rank.number == FAULTY:
        SPOIL[what]()


# What there is only so much of.


def uses_up_files(rank: Rank) -> None:
    """Rank 1 opens files until there are no more."""
    if rank.number == FAULTY:
        _limit_files()
        while True:
            _held.append(os.open(os.devnull, os.O_RDONLY))
    _meet()


def uses_up_memory(rank: Rank) -> None:
    """Rank 1 takes all memory that it may have, down to the last bytes, and keeps it."""
    if rank.number == FAULTY:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        for size in (1 << 20, 1 << 16, 1 << 12):
            while _take(size):
                pass
        bytearray(1 << 24)
    _meet()


def _take(size: int) -> bool:
    try:
        _held.append(bytearray(size))
    except MemoryError:
        return False
    return True


def allocates_too_much(rank: Rank) -> None:
    """Rank 1 asks for a tensor that no memory can hold."""
    if rank.number == FAULTY:
        torch.empty(1 << 60, dtype=torch.uint8)
    _meet()


def prints_much(rank: Rank) -> None:
    """Rank 1 prints 50 MB, and returns."""
    if rank.number == FAULTY:
        for _ in range(50):
            sys.stdout.write("x" * (1 << 20))


# Processes and threads that should not be there.


def bombs(rank: Rank) -> None:
    """Rank 1 forks copies that fork copies, and raises."""
    if rank.number == FAULTY:
        for _ in range(5):
            if os.fork() == 0:
                for _ in range(10):
                    os.fork()
                    time.sleep(1000)
        raise MemoryError("out of memory")
    _meet()


def _daemonise() -> None:
    """Start a process that belongs to nobody any more: no group, no session, no parent."""
    subprocess.run(["sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &"], check=True)


def leaves_a_daemon(rank: Rank) -> None:
    """Rank 1 starts a process that leaves its group and its parent, and raises."""
    if rank.number == FAULTY:
        _daemonise()
        raise MemoryError("out of memory")
    _meet()


def leaves_a_daemon_and_dies(rank: Rank) -> None:
    """Rank 1 starts a process that leaves its group and its parent, and is killed."""
    if rank.number == FAULTY:
        _daemonise()
        os.kill(os.getpid(), signal.SIGKILL)
    _meet()


def copies_itself(rank: Rank) -> None:
    """Rank 1 forks, and both copies return."""
    if rank.number == FAULTY:
        os.fork()


def leaves_a_stubborn_thread(rank: Rank) -> None:
    """Rank 1 leaves a thread that its process will wait for."""
    if rank.number == FAULTY:
        threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()


def leaves_a_thread_in_a_collective(rank: Rank) -> None:
    """Rank 1 returns, while a thread that it started waits in a collective."""
    if rank.number == FAULTY:
        threading.Thread(target=_meet, daemon=True).start()
        time.sleep(0.1)


def destroys_its_group(rank: Rank) -> None:
    """Rank 1 destroys the process group of all, and returns."""
    _meet()
    if rank.number == FAULTY:
        dist.destroy_process_group()


# Hanging.


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


def receives_from_nobody(rank: Rank) -> None:
    """Rank 1 waits for what its peer never sends."""
    if rank.number == FAULTY:
        dist.recv(torch.ones(1), src=0)


def waits_for_a_key(rank: Rank) -> None:
    """Rank 1 waits in the store for what nobody writes there."""
    if rank.number == FAULTY:
        dist.distributed_c10d._get_default_store().get("nobody writes this")
    _meet()
