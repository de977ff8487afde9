"""Probes of when results are there: after a call that waits, after ``wait()``, and while tensors are let go.

Two ranks gather; rank 1 comes 50 ms late. Rank 0 may go on before that, but what it reads then is rank 1's numbers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.doctor.probes.answer import NotTried
from harness.doctor.probes.collectives import Ask
from harness.doctor.probes.device import work_long
from harness.doctor.probes.exact import holds, numbers, reduced, same
from harness.worlds.rank import Rank

_NUMEL = 50_000
_LATE = 0.05


@dataclass
class _Call:
    """A collective that can be started, on a copy of ``source`` that is the collective's alone, and what must come."""

    name: str
    source: Tensor
    out: Tensor
    want: Tensor

    def start(self, **how: Any) -> Any:
        """Copy on the device, behind whatever is queued there; then call."""
        if self.name == "all-reduce":
            self.out.copy_(self.source)
            return dist.all_reduce(self.out, **how)
        call = all_gather if self.name == "all-gather" else reduce_scatter
        return call(self.out, self.source.clone(), **how)


def _prepared(rank: Rank, name: str, turn: int = 0) -> _Call:
    each = [numbers(other, rank.size, _NUMEL * rank.size, torch.float32, turn) for other in range(rank.size)]
    total = reduced("SUM", rank.size, _NUMEL * rank.size, torch.float32, turn)
    own, want = each[rank.number], total
    if name == "all-gather":
        own, want = own[:_NUMEL], torch.cat([one[:_NUMEL] for one in each])
    elif name == "reduce-scatter":
        want = total.chunk(rank.size)[rank.number]
    return _Call(name, own.to(rank.device), torch.zeros(want.shape, device=rank.device), want)


_NAMES = ("all-gather", "reduce-scatter", "all-reduce")


def _delay(rank: Rank, late: int) -> None:
    """Come late on the host, and on the device."""
    if rank.number == late:
        if rank.device.type != "cpu":
            work_long(rank.device)
        time.sleep(_LATE)


def after_return(rank: Rank, name: str) -> str:
    """Row 18."""
    for late in range(rank.size):
        call = _prepared(rank, name, late)
        _delay(rank, late)
        call.start()
        same(f"{name} read right after the call, where rank {late} was late", call.out.clone(), call.want)
    return ""


def after_wait(rank: Rank, name: str) -> str:
    """Row 19a: two in flight, of which the second is waited for first."""
    for late in range(rank.size):
        calls = [_prepared(rank, name, turn) for turn in range(2)]
        _delay(rank, late)
        works = [call.start(async_op=True) for call in calls]
        for work in works:
            holds(isinstance(work, dist.Work), f"{name}: async_op=True gives a {type(work).__name__}, no Work")
        for work, call in reversed([*zip(works, calls, strict=True)]):
            work.wait()
            same(f"{name} read after wait(), where rank {late} was late", call.out.clone(), call.want)
    return ""


def kept(rank: Rank, name: str) -> str:
    """Row 20: inputs were let go, and others get their memory and write to it."""
    for late in range(rank.size):
        call = _prepared(rank, name, late)
        _delay(rank, late)
        work = call.start(async_op=True)
        noise = [torch.full_like(call.source, -55.0) for _ in range(8)]
        work.wait()
        same(f"{name} whose input was let go, where rank {late} was late", call.out.clone(), call.want)
        del noise
    return ""


def host_goes_on(rank: Rank) -> str:
    """Row 19b: waiting must not take as long as the work that is queued before the collective."""
    module = getattr(torch, rank.device.type)
    long = 0.0
    for _ in range(2):  # the first time is for warming up
        call = _prepared(rank, "all-gather")
        call.start(async_op=True).wait()
        module.synchronize()
        began = time.monotonic()
        work_long(rank.device)
        module.synchronize()
        long = time.monotonic() - began
    work_long(rank.device)
    queued = time.monotonic()
    call.start(async_op=True).wait()
    waited = time.monotonic() - queued
    same("all-gather behind long work", call.out, call.want)
    if long < 0.005:
        raise NotTried(f"the device did in {long * 1e3:.1f} ms what was to keep it busy")
    slow = f"wait() took the host {waited * 1e3:.0f} ms behind work of {long * 1e3:.0f} ms"
    holds(waited < long / 2, slow)
    return ""


ASKS: dict[str, dict[str, Ask]] = {
    "18": {name: partial(after_return, name=name) for name in _NAMES},
    "19a": {name: partial(after_wait, name=name) for name in _NAMES},
    "19b": {"": host_goes_on},
    "20": {name: partial(kept, name=name) for name in _NAMES[:2]},
}
