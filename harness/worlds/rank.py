"""What a program is handed on each rank: its number, the world's size, a device, and the implementation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.collective_trace.fault_injection import FailingTrace
from harness.collective_trace.recorder import Entry, Listen, by_dispatcher
from harness.vendor.api import Backend, Claimed
from harness.worlds.workers.device_check import named_function

#: What a device ran: its stream, its kernel, and when it began and ended, in microseconds.
Launch = tuple[str, str, float, float]


def seed_like_a_new_process(device_type: str) -> None:
    """Set the random state that a program starts with, whatever ran before it.

    ``torch.manual_seed`` would also queue a call, with its stack, for every kind of device that is not there.
    """
    torch.default_generator.manual_seed(0)
    if device_type != "cpu":
        getattr(torch, device_type).manual_seed(0)


@dataclass
class Rank:
    """One rank of a world. Programs reach the implementation under judgement through it and nowhere else."""

    number: int
    size: int
    device: torch.device
    implementation: Claimed
    backend: Backend
    _listen: Listen = field(default=by_dispatcher, repr=False)
    _meshes: dict[tuple[Any, ...], DeviceMesh] = field(default_factory=dict, repr=False)
    _groups: dict[tuple[Any, ...], dist.ProcessGroup | None] = field(default_factory=dict, repr=False)

    def mesh(self, shape: Sequence[int] | None = None, names: Sequence[str] | None = None) -> DeviceMesh:
        """The mesh of ``shape`` (default: all ranks in one axis) with axes called ``names``, made once a world.

        Every rank must ask for the same meshes in the same order, since making one is a collective act.
        """
        key = (tuple(shape or (self.size,)), tuple(names) if names else None)
        if key not in self._meshes:
            self._meshes[key] = init_device_mesh(self.device.type, key[0], mesh_dim_names=key[1])
        return self._meshes[key]

    def group(self, ranks: Sequence[int], copy: int = 0) -> dist.ProcessGroup | None:
        """The process group of these ranks, made once a world; None on a rank that is not one of them.

        Every rank must ask for the same groups in the same order. Groups of the same ranks differ by ``copy``.
        """
        key = (tuple(ranks), copy)
        if key not in self._groups:
            made = dist.new_group(list(ranks))
            self._groups[key] = made if self.number in ranks else None
        return self._groups[key]

    def forget_groups(self) -> None:
        """Keep no group or mesh alive that is about to be destroyed."""
        self._groups.clear()
        self._meshes.clear()

    @contextmanager
    def collectives(self, waits: bool = False) -> Iterator[list[Entry]]:
        """Note every collective that this rank issues in the block, in order, as entries of ``collective_trace``.

        With ``waits``, also when it first waited for each of them.
        """
        entries: list[Entry] = []
        with self._listen(entries, waits):
            yield entries

    @contextmanager
    def launches(self) -> Iterator[list[Launch]]:
        """Note what the device runs in the block, if the backend says; thread ranks share a device, and its list."""
        found: list[Launch] = []
        if not self.backend.timeline:
            yield found
            return
        timeline = named_function(self.backend.timeline)
        timeline(True)
        try:
            yield found
        finally:
            found += timeline(False)

    @contextmanager
    def failing(self, at: int) -> Iterator[None]:
        """Have this rank's collective number ``at`` of the block, counted from 0, raise ``CollectiveFailed``."""
        with self._listen(FailingTrace(at), False):
            yield
