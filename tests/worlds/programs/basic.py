"""Programs that ranks run in the tests of the worlds: one well-behaved, the others each with one fault on rank 1."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.vendor import Backend
from harness.worlds.rank import Rank

FAULTY = 1

spawned = Backend(name="spawned", start_method="spawn")
without_group = Backend(name="without group", process_group="nonsense")
with_late_device = Backend(name="with late device", imports=("tests.worlds.programs.late_device",))
without_plugin = Backend(name="without plugin", imports=("no_such_plugin",))


def add_up(rank: Rank) -> dict[str, Any]:
    """All-reduce [1] + [2] + … and return this rank's number beside the sum."""
    total = torch.full((3,), float(rank.number + 1))
    dist.all_reduce(total)
    return {"rank": rank.number, "total": total}


def device_of_late_gradient(rank: Rank) -> str:
    """Where a gradient is that a backward has computed on the device of ``tests.worlds.programs.late_device``."""
    from tests.worlds.programs import late_device  # here alone: it is there only where the backend has imported it

    return late_device.device_of_gradient()


def echo(rank: Rank, value: Any) -> Any:
    """Give back what was sent."""
    return value


def _meet() -> None:
    dist.all_reduce(torch.ones(1))


def raises_on_one(rank: Rank) -> None:
    """Rank 1 raises while its peers wait for it."""
    if rank.number == FAULTY:
        raise MemoryError("out of memory")
    _meet()


def raises_on_all(rank: Rank) -> None:
    """Every rank raises the same."""
    raise MemoryError("out of memory")


def sleeps(rank: Rank) -> None:
    """Rank 1 sleeps for ever."""
    if rank.number == FAULTY:
        time.sleep(1000)
    _meet()


def spins(rank: Rank) -> None:
    """Rank 1 computes for ever."""
    while rank.number == FAULTY:
        pass
    _meet()


def meets_alone(rank: Rank) -> None:
    """Rank 1 waits in a collective that its peers never join."""
    if rank.number == FAULTY:
        _meet()


def calls_another_collective(rank: Rank) -> None:
    """Rank 1 waits in a barrier, its peers in an all-reduce of another group's making."""
    if rank.number == FAULTY:
        dist.barrier()
    else:
        dist.all_gather_into_tensor(torch.empty(64 * rank.size), torch.ones(64))


def segfaults(rank: Rank) -> None:
    """Rank 1's process breaks memory."""
    if rank.number == FAULTY:
        ctypes.string_at(0)
    _meet()


def prints_and_raises(rank: Rank) -> None:
    """Rank 1 prints megabytes, from Python and from a child, and then raises."""
    if rank.number == FAULTY:
        print("x" * (4 << 20), flush=True)
        subprocess.run(["echo", "last words"], check=True)
        raise MemoryError("out of memory")
    _meet()


def leaves_a_child(rank: Rank, note: str) -> None:
    """Every rank starts a process that would live for long, and writes down its pid; then rank 1 raises."""
    leaves_a_child_and_returns(rank, note)
    _meet()
    raises_on_one(rank)


def leaves_a_child_and_returns(rank: Rank, note: str) -> None:
    """Every rank starts a process that would live for long, and returns."""
    child = subprocess.Popen(["sleep", "1000"])
    Path(note, str(rank.number)).write_text(str(child.pid))


def seeds_and_default_dtype(rank: Rank) -> list[Any]:
    """What a program finds in a fresh world; then leave traces for the next."""
    found = [torch.rand(1).item(), str(torch.get_default_dtype())]
    torch.set_default_dtype(torch.float64)
    return found


def shows_surroundings(rank: Rank) -> dict[str, Any]:
    """What a program sees of its process."""
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "RANK": os.environ.get("RANK"),
        "WORLD_SIZE": os.environ.get("WORLD_SIZE"),
        "marker": os.environ.get("FSDP_TEST_MARKER"),
        "threads": torch.get_num_threads(),
    }


def own_coordinate(rank: Rank) -> list[int]:
    """Where this rank is on the mesh of what an operation gives: torch caches that by mesh."""
    net = torch.nn.Linear(4, 4)
    assert rank.implementation.fully_shard is not None
    rank.implementation.fully_shard(net, mesh=rank.mesh())
    return list(net.state_dict()["weight"].device_mesh.get_coordinate())
