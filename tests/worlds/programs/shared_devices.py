"""The simulated accelerator as if its devices were the machine's: two processes on one are found.

A process that uses a device holds the device's file in a folder while a program runs. There its parent, the fork server
of a controller, is written down.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from harness.simulated.backend import backend as simulated
from harness.simulated.races import races
from harness.worlds.rank import Rank

VISIBLE, FOLDER = "VISIBLE_SIMULATED_DEVICES", "SIMULATED_DEVICES_FOLDER"
backend = replace(simulated, own_devices=False, visible_devices=VISIBLE, check=f"{__name__}:alone")
spawned = replace(backend, name="spawned", start_method="spawn")
fixed = replace(backend, name="fixed", environment={VISIBLE: "0,1"})

#: The file that this process holds, and whether another held it.
_held: list[tuple[int, bool]] = []


def alone() -> Sequence[str]:
    """Before a program: begin to use the device. After it: end that, and say what went wrong meanwhile."""
    if not _held:
        _held.append(_begun())
        return races()
    file, is_taken = _held.pop()
    os.close(file)
    return [*races(), *(["two processes use one device"] if is_taken else [])]


def _begun() -> tuple[int, bool]:
    file = os.open(Path(os.environ[FOLDER]) / device(), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{os.getppid()}\n".encode())
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return file, True
    return file, False


def device() -> str:
    """Which device of the machine the current one is, by the name that the variable gives it."""
    visible = os.environ.get(VISIBLE) or ",".join(map(str, range(backend.ranks)))
    return visible.split(",")[torch.accelerator.current_device_index()]


# Programs.


def places(rank: Rank) -> tuple[str, str, int]:
    """What a rank calls its device, which one that is, and how many it sees."""
    return str(rank.device), device(), torch.accelerator.device_count()


def adds_up(rank: Rank) -> float:
    """Add one over all ranks."""
    one = torch.ones(1, device=rank.device)
    dist.all_reduce(one)
    return float(one)


def says_so_and_waits(rank: Rank, pipe: str) -> None:
    """Rank 0 writes its process's number into a pipe; then no rank returns."""
    if rank.number == 0:
        Path(pipe).write_text(str(os.getpid()))
    threading.Event().wait()


def kills(rank: Rank, victim: int) -> None:
    """Rank 0 kills a process; then no rank returns."""
    if rank.number == 0:
        os.kill(victim, signal.SIGKILL)
    threading.Event().wait()
