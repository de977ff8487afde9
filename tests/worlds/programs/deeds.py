"""What rank 1 does to its process or to the harness, each by its name, and the programs in which it does so.

misbehaves(rank, "is_killed")      rank 1: SIGKILL          the others: an all-reduce, in which they wait for it
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.worlds import wire
from harness.worlds.rank import Rank
from tests.worlds.programs.basic import FAULTY, _meet

Deeds = dict[str, Callable[[], Any]]
held: list[Any] = []


# The programs.


def misbehaves(rank: Rank, deed: str) -> None:
    """Rank 1 does it; then ranks meet, if there are any left."""
    if rank.number == FAULTY:
        INSTEAD[deed]()
    _meet()


def meets_and_misbehaves(rank: Rank, deed: str) -> None:
    """Ranks meet; then rank 1 does it."""
    _meet()
    if rank.number == FAULTY:
        AFTERWARDS[deed]()


def spoils(rank: Rank, deed: str) -> None:
    """Rank 1 does it, and all is well otherwise."""
    if rank.number == FAULTY:
        {**QUIETLY, **SPOIL}[deed]()


def returns(rank: Rank, deed: str) -> Any:
    """Rank 1 returns this, the others nothing."""
    return RESULTS[deed]() if rank.number == FAULTY else None


# Words for what they do.


def _fail(error: BaseException | None = None) -> None:
    raise error or MemoryError("out of memory")


def _strike(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1000)


class Unspeakable(Exception):
    """Cannot be shown and cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = open(os.devnull)  # noqa: SIM115  an open file cannot be pickled

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unusual(BaseException):
    """No Exception."""


def _chain() -> Exception:
    """An exception with thousands of causes."""
    error: Exception = ValueError("the first")
    for number in range(3000):
        cause, error = error, ValueError(f"number {number}")
        error.__cause__ = cause
    return error


def _recurse() -> None:
    _recurse()


class _Quantity(torch.Tensor):
    """Almost a tensor."""


def _endless() -> list[Any]:
    """A list that contains itself."""
    endless: list[Any] = []
    endless.append(endless)
    return endless


def _write_to_every_pipe() -> None:
    """Also to that of the answers of its process."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\0\0\0\x04junk")
        except OSError:
            continue
    time.sleep(1000)


def _end_halfway(end: Callable[[], Any]) -> None:
    """From now on, this process ends so when half of an answer is sent."""

    def send_half(self: Connection, message: bytes) -> None:
        os.write(self.fileno(), len(message).to_bytes(4, "big") + message[: len(message) // 2])
        end()

    Connection.send_bytes = send_half  # type: ignore[method-assign, assignment]


def _remove_directory() -> None:
    os.chdir(tempfile.mkdtemp())
    os.rmdir(os.getcwd())


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _use_up_files() -> None:
    _limit_files()
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))


def _use_up_memory() -> None:
    """Take all memory that there may be, down to the last bytes, and keep it."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    for size in (1 << 20, 1 << 16, 1 << 12):
        while _take(size):
            pass
    bytearray(1 << 24)


def _take(size: int) -> bool:
    try:
        held.append(bytearray(size))
    except MemoryError:
        return False
    return True


def _bomb() -> None:
    """Fork copies that fork copies."""
    for _ in range(5):
        if os.fork() == 0:
            for _ in range(10):
                os.fork()
                time.sleep(1000)
    _fail()


def _daemonise() -> None:
    """Start a process that has no group, session or parent of ours any more."""
    subprocess.run(["sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &"], check=True)


def _start_thread(target: Callable[..., Any], *args: Any, daemon: bool = True) -> None:
    threading.Thread(target=target, args=args, daemon=daemon).start()


def _patch(module: Any, name: str, value: Any) -> None:
    setattr(module, name, value)


# What they do.

INSTEAD: Deeds = {
    "holds_the_interpreter": lambda: ctypes.PyDLL(None).pause(),  # sleeps, and lets no other Python thread run
    "stops": lambda: _strike(signal.SIGSTOP),
    "is_interrupted": lambda: _strike(signal.SIGINT),
    "exits_with_0": lambda: os._exit(0),
    "exits_with_3": lambda: os._exit(3),
    "exits_with_255": lambda: os._exit(255),  # as an unknown exit code where the fork server has died
    "is_killed": lambda: _strike(signal.SIGKILL),
    "aborts": os.abort,
    "is_terminated": lambda: _strike(signal.SIGTERM),
    "is_killed_with_shared_memory": lambda: (
        held.append(torch.ones(1 << 16).share_memory_()),
        _strike(signal.SIGKILL),
    ),
    "calls_sys_exit": lambda: sys.exit(0),
    "skips": lambda: pytest.skip("not today"),
    "raises_the_unspeakable": lambda: _fail(Unspeakable()),
    "raises_keyboard_interrupt": lambda: _fail(KeyboardInterrupt()),
    "raises_stop_iteration": lambda: next(iter(())),
    "raises_no_exception": lambda: _fail(Unusual("not of the usual kind")),
    "raises_a_long_story": lambda: _fail(ValueError("long story " * (1 << 20))),
    "raises_a_long_chain": lambda: _fail(_chain()),
    "raises_half_letters": lambda: _fail(ValueError("half a letter: \ud800, nothing: \0")),
    "recurses": _recurse,
    "writes_to_every_pipe": _write_to_every_pipe,
    "closes_all_files": lambda: (os.closerange(3, 256), time.sleep(1000)),
    "uses_up_files": _use_up_files,
    "uses_up_memory": _use_up_memory,
    "allocates_too_much": lambda: torch.empty(1 << 60, dtype=torch.uint8),
    "bombs": _bomb,
    "leaves_a_daemon": lambda: (_daemonise(), _fail()),
    "leaves_a_daemon_and_dies": lambda: (_daemonise(), _strike(signal.SIGKILL)),
}
AFTERWARDS: Deeds = {
    "is_killed_after_the_last_collective": lambda: _strike(signal.SIGKILL),
    "is_killed_while_sending": lambda: _end_halfway(lambda: _strike(signal.SIGKILL)),
    "exits_while_sending": lambda: _end_halfway(lambda: os._exit(0)),
    "hangs_while_sending": lambda: _end_halfway(lambda: time.sleep(1000)),
    "closes_all_files_and_returns": lambda: os.closerange(3, 256),
    "destroys_its_group": dist.destroy_process_group,  # that of all
}
QUIETLY: Deeds = {
    "receives_without_a_sender": lambda: dist.recv(torch.ones(1), src=0),
    "aborts_at_exit": lambda: atexit.register(os.abort),
    "exits_at_exit": lambda: atexit.register(os._exit, 7),
    "is_killed_at_exit": lambda: atexit.register(os.kill, os.getpid(), signal.SIGKILL),
    "removes_its_files": lambda: shutil.rmtree(Path(os.readlink("/proc/self/fd/1")).parent),
    "closes_its_output": lambda: (os.close(1), os.close(2)),
    "prints_much": lambda: [sys.stdout.write("x" * (1 << 20)) for _ in range(50)],
    "copies_itself": os.fork,  # both copies return
    "leaves_a_stubborn_thread": lambda: _start_thread(time.sleep, 1000, daemon=False),
    "leaves_a_thread_in_a_collective": lambda: (_start_thread(_meet), time.sleep(0.1)),
}
#: For good. Only where signals can be handled: on the main thread.
SPOIL: Deeds = {
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
    "open files": lambda: held.extend(os.open(__file__, os.O_RDONLY) for _ in range(3)),
    "time.time": lambda: _patch(time, "time", lambda: 0.0),
    "torch.distributed.all_reduce": lambda: _patch(dist, "all_reduce", lambda *_, **__: None),
    "Python threads": lambda: _start_thread(time.sleep, 1000),
    "child processes": lambda: subprocess.Popen(["sleep", "1000"]),
}
#: What cannot travel.
RESULTS: Deeds = {
    "returns_an_object": lambda: {"values": [1, object()]},
    "returns_a_mapping": lambda: collections.OrderedDict(loss=1.0),
    "returns_a_quantity": lambda: [torch.ones(2).as_subclass(_Quantity)],
    "returns_no_numbers": lambda: torch.empty(2, device="meta"),
    "returns_itself": _endless,
    "returns_too_much": lambda: torch.empty(wire.LIMIT + 1, dtype=torch.uint8),
}
PROGRAMS: tuple[tuple[Callable[..., Any], Deeds], ...] = (
    (misbehaves, INSTEAD),
    (meets_and_misbehaves, AFTERWARDS),
    (spoils, {**QUIETLY, **SPOIL}),
    (returns, RESULTS),
)
