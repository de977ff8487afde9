"""MPI as a process group in Python: c10d's methods and their arithmetic are the harness's, and mpi4py moves tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from adapters.mpi_start import world
from fsdp_conformance import Backend
from harness.process_group.arithmetic import PERFORM, Call
from harness.process_group.methods import CollectiveGroup, CollectiveWork, ranks_of


class MPIWork(CollectiveWork):
    """The handle of a collective, which is over when it returns, or of a message, which ends when it is waited for."""

    def __init__(self, outputs: Any, receive: Callable[[], Any] = list) -> None:
        super().__init__()
        self.outputs, self._receive = outputs, receive

    def wait(self, timeout: Any = None) -> bool:
        """Have the outputs written."""
        receive, self._receive = self._receive, list
        for target, value in zip(self.outputs, receive() or (), strict=False):
            target.data.copy_(value)
        return True

    is_completed = is_success = wait


class MPIGroup(CollectiveGroup):
    """Ranks of MPI's world."""

    def __init__(self, options: Any, _: Any) -> None:
        super().__init__(options.group_id, options.group_rank, ranks_of(options))
        everyone = world(options)
        self._mpi = everyone.Create_group(everyone.group.Incl(self._ranks))

    def _post(self, name: str, opts: Any, inputs: Any, outputs: Any, *agree: Any, **more: Any) -> Any:
        sent = self._mpi.allgather((_plain(inputs), (None,) * len(outputs)))
        sent[self._number] = (sent[self._number][0], tuple(outputs))
        PERFORM[name]([Call(name, agree, *tensors, **more) for tensors in sent])
        return MPIWork(outputs)

    def send(self, tensors: Any, dst: int, tag: int) -> Any:
        """Send to a rank of the group."""
        return MPIWork([], self._mpi.isend(_plain(tensors), dst, tag).wait)

    def recv(self, tensors: Any, src: int, tag: int) -> Any:
        """Receive from one."""
        return MPIWork(tensors, lambda: self._mpi.recv(source=src, tag=tag))


def _plain(tensors: Any) -> tuple[Any, ...]:
    return tuple(tensor.detach().clone() for tensor in tensors)


dist.Backend.register_backend("mpi4py", MPIGroup, extended_api=True, devices=["cpu"])
# MPI starts once in a process, so each test has new ones.
backend = Backend(name="mpi", process_group="mpi4py", imports=("adapters.mpi",), persistent=False)
