"""Backends with a defect in one collective, made as a vendor makes one: a process group in Python.

Right is what gloo does underneath. Two ranks with [1, 2] and [3, 6] that reduce-scatter an average get [2] and [4].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo

from harness.vendor import Backend
from tests.mutants import name_of

#: What a process group in Python must answer to: torch lets it take the place of its own. Names of all versions.
COLLECTIVES = (
    "allgather", "allgather_coalesced", "_allgather_base", "all_gather_single", "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single", "barrier", "broadcast", "gather", "monitored_barrier", "recv", "recv_anysource", "reduce",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "scatter", "send", "_start_coalescing", "_end_coalescing", "shutdown", "abort",
)  # fmt: skip


class OverGloo(dist.ProcessGroup):
    """Hands every call on to gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._place, self._ranks, self._name = rank, size, ""
        self.inner = dist.ProcessGroup(store, rank, size)
        self.inner._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        gloo = ProcessGroupGloo(store, rank, size, timeout)
        self.inner._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)

    def rank(self) -> int:
        return self._place

    def size(self) -> int:
        return self._ranks

    def getBackendName(self) -> str:
        return "over gloo"

    def _set_group_name(self, name: str) -> None:
        self._name = name
        self.inner._set_group_name(name)

    @property
    def group_name(self) -> str:
        return self._name


def _handing_on(name: str) -> Callable[..., Any]:
    def hand_on(self: OverGloo, *args: Any, **more: Any) -> Any:
        return getattr(self.inner, name)(*args, **more)

    return hand_on


for _name in COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(OverGloo, _name, _handing_on(_name))


class SumsForAverages(OverGloo):
    """Has no average: gets [4] and [8]."""

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        opts.reduceOp = dist.ReduceOp.SUM
        return self.inner.reduce_scatter_single(output, input, opts)

    _reduce_scatter_base = reduce_scatter_single


class LosesTheLastRank(OverGloo):
    """Gets [0.5] and [1]: the last rank's numbers never arrive."""

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        if self.rank() == self.size() - 1:
            input = torch.zeros_like(input)
        return self.inner.reduce_scatter_single(output, input, opts)

    _reduce_scatter_base = reduce_scatter_single


class ReversesRanks(OverGloo):
    """Ranks that hold [1] and [2] gather [2, 1]."""

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        work = self.inner.all_gather_single(output, input, opts)
        work.wait()
        output.copy_(torch.cat(output.chunk(self.size())[::-1]))
        return work

    _allgather_base = all_gather_single


class ClearsItsOutputFirst(OverGloo):
    """Cannot gather in place: its output is zero before its input, a part of it, is read."""

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        output.zero_()
        return self.inner.all_gather_single(output, input, opts)

    _allgather_base = all_gather_single


class RefusesAverages(OverGloo):
    """Raises, where a vendor's library has no such reduction."""

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        if opts.reduceOp == dist.ReduceOp.AVG:
            raise RuntimeError("average is not supported by this scheduler")
        return self.inner.reduce_scatter_single(output, input, opts)

    _reduce_scatter_base = reduce_scatter_single


def mutant(requirement: str, group: type[OverGloo]) -> Backend:
    """A backend with a defect, and the requirement that must kill it."""
    return replace(
        over_gloo(f"{group.__module__.rpartition('.')[2]}_{group.__name__}".lower(), group), name=name_of(requirement)
    )


def over_gloo(name: str, group: type[OverGloo]) -> Backend:
    """Register a process group with torch, and describe the backend that it is."""
    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, group, devices=["cpu"])
    return Backend(name=name, process_group=name, imports=(__name__,))


right = over_gloo("gloo_in_python", OverGloo)
sums_for_averages = mutant("parity/exact", SumsForAverages)
loses_the_last_rank = mutant("parity/exact", LosesTheLastRank)
reverses_ranks = mutant("parity/exact", ReversesRanks)
clears_its_output_first = mutant("parity/exact", ClearsItsOutputFirst)
refuses_averages = mutant("parity/exact", RefusesAverages)

RAISES = {"refuses_averages"}
