"""The process world's role: one rank in a process of its own, on the backend's real process group.

Ranks meet in a file that their world made, not on a port, so no port is guessed and no other user can connect. Those
of an attached world may be on several machines: they meet in the store of their launch.
"""

from __future__ import annotations

import datetime
import os
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from harness.vendor.api import Backend, Claimed
from harness.vendor.bounds import within_claims
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.worlds.base import Outcome, Program
from harness.worlds.group_teardown import destroy_groups, left_of
from harness.worlds.processes import flight_recorder
from harness.worlds.rank import Rank, seed_like_a_new_process
from harness.worlds.workers.worker import attempt

#: Longer than any deadline: time is judged by the supervisor, which shows stacks, and not by the process group.
_GROUP_TIMEOUT = datetime.timedelta(hours=6)

_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


@dataclass(frozen=True)
class RankPlace:
    """Which of how many ranks a rank is on its node, and whether the whole world is on one machine."""

    rank: int
    size: int
    on_one_machine: bool = True


class ProcessRole:
    """One rank with a process group that lives from here to ``leave``. ``store`` opens the place where ranks meet."""

    def __init__(
        self, rank: int, size: int, subject: Subject, store: Callable[[], Store], place: RankPlace | None = None
    ) -> None:
        backend = load_backend(subject.backend)
        place = place or RankPlace(rank, size)
        _set_environment(rank, size, place, backend)
        implementation = within_claims(load_implementation(subject.implementation), size)
        device = _own_device(place.rank, backend.device_type)
        flight_recorder.start()
        dist.init_process_group(
            backend.process_group,
            store=store(),
            rank=rank,
            world_size=size,
            timeout=_GROUP_TIMEOUT,
        )
        self._rank = Rank(rank, size, device, cast("Claimed", implementation), backend)
        self._group = weakref.ref(dist.distributed_c10d._get_default_group())

    def run(self, program: Program, args: tuple[Any, ...], deadline: float | None) -> list[Outcome]:
        """Run the program here; the supervisor keeps the deadline."""
        seed_like_a_new_process(self._rank.device.type)
        return [attempt(self._rank.number, lambda: program(self._rank, *args))]

    def spoilt(self) -> str:
        """A program that destroys the group of all ranks, as its own tests may, leaves none for the next one."""
        is_there = dist.is_initialized() and dist.distributed_c10d._get_default_group() is self._group()
        return "" if is_there else "destroyed its process group"

    def leave(self) -> list[str]:
        """Destroy the process group, as a user's program would, without waiting for other ranks."""
        self._rank.forget_groups()
        return left_of(destroy_groups())


def file_store(path: str, size: int) -> Store:
    """Where ranks of one machine meet."""
    return FileStore(path, size)


def _set_environment(rank: int, size: int, place: RankPlace, backend: Backend) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(LOCAL_RANK=str(place.rank), LOCAL_WORLD_SIZE=str(place.size))
    loopback = _loopback() if place.on_one_machine else ""
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    for name, value in {**flight_recorder.ENVIRONMENT, **(_NCCL if backend.device_type == "cuda" else {})}.items():
        os.environ.setdefault(name, value)
    os.environ.update(backend.environment)


def _loopback() -> str:
    """The name of the loopback interface: what ranks listen on is not for other machines."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), "")


def _own_device(rank: int, device_type: str) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    module = getattr(torch, device_type)
    device = torch.device(device_type, rank % module.device_count())
    module.set_device(device)
    torch.manual_seed(0)
    return device
