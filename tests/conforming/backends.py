"""Backends that are unusual but conforming: process groups in Python over gloo that go another way to the same result.

Asked to gather [1 2] and [3 4], ``GathersByBroadcasts`` has rank 0 send [1 2] to all, then rank 1 [3 4].
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from harness.collective_trace.work_handles import flat
from harness.vendor import LIMITS, Backend
from harness.vendor.backends import gloo
from tests.conforming.noticing import noticed
from tests.mutants.backends.backends import COLLECTIVES, OverGloo

#: Those that several ranks make together, and that give a handle.
JOINT = [name for name in COLLECTIVES if name not in {"send", "recv", "recv_anysource", "shutdown", "abort"}]
JOINT = [name for name in JOINT if "coalescing" not in name and hasattr(dist.ProcessGroup, name)]


class Odd(OverGloo):
    """Hands every call on to gloo, and has it for a backend too, to be asked about memory."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size, timeout)
        cpu = torch.device("cpu")
        self._register_backend(cpu, dist.ProcessGroup.BackendType.GLOO, self.inner._get_backend(cpu))


class AddsInReverse(Odd):
    """Reduce-scatters by an all-to-all, and adds from the last rank to the first. Right: no order is promised."""

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        averages = opts.reduceOp == dist.ReduceOp.AVG
        if not (averages or opts.reduceOp == dist.ReduceOp.SUM) or not output.numel():
            return self.inner.reduce_scatter_single(output, input, opts)
        noticed("a backend adds in reverse")
        came = torch.empty_like(input, memory_format=torch.contiguous_format)
        work = self.inner.all_to_all_single(came, input.contiguous(), [], [], c10d.AllToAllOptions())
        work.wait()
        first, *others = reversed(came.view(self.size(), -1))
        total = first.clone()
        for part in others:
            total += part
        output.copy_((total / self.size() if averages else total).view_as(output))
        return work

    _reduce_scatter_base = reduce_scatter_single


class GathersByBroadcasts(Odd):
    """All-gathers by one broadcast of each rank. Right: in the end all ranks have all parts."""

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        noticed("a backend gathers by broadcasts")
        own, works = input.clone(), []
        rows = [torch.empty(input.numel(), dtype=input.dtype) for _ in range(self.size())]
        rows[self.rank()] = own.reshape(-1)
        for root, row in enumerate(rows):
            to = c10d.BroadcastOptions()
            to.rootRank = root
            works.append(self.inner.broadcast([row], to))
            works[-1].wait()
        output.copy_(torch.cat(rows).view_as(output))
        return works[-1]

    _allgather_base = all_gather_single


class GathersInHalves(Odd):
    """All-gathers in two messages. Right: how bytes are cut on their way is a backend's own."""

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        noticed("a backend gathers in halves")
        flat, halves = input.reshape(-1), []
        for half in (flat[: flat.numel() // 2].clone(), flat[flat.numel() // 2 :].clone()):
            halves.append(torch.empty(self.size(), half.numel(), dtype=half.dtype))
            work = self.inner.all_gather_single(halves[-1].view(-1), half, opts)
            work.wait()
        output.copy_(torch.cat(halves, dim=1).view_as(output))
        return work

    _allgather_base = all_gather_single


class AllReducesInTwoSteps(Odd):
    """All-reduces by a reduce-scatter and an all-gather. Right: rings do so."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        ours = opts is not None and any(opts.reduceOp == op for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG))
        if not ours or len(tensors) > 1 or not tensors[0].numel():
            return self.inner.allreduce(tensors, *([opts] if opts is not None else []))
        noticed("a backend all-reduces in two steps")
        flat = tensors[0].reshape(-1)
        room = torch.zeros(-(-flat.numel() // self.size()) * self.size(), dtype=flat.dtype)
        room[: flat.numel()] = flat
        part = torch.empty(room.numel() // self.size(), dtype=flat.dtype)
        reducing = c10d.ReduceScatterOptions()
        reducing.reduceOp = opts.reduceOp
        self.inner.reduce_scatter_single(part, room, reducing).wait()
        work = self.inner.all_gather_single(room, part, c10d.AllgatherOptions())
        work.wait()
        tensors[0].copy_(room[: flat.numel()].view_as(tensors[0]))
        return work


class Task(dist._Work):
    """The handle of a collective that another thread makes."""

    def __init__(self, future: Future[Any], outputs: list[Tensor]) -> None:
        super().__init__()
        self._future, self._outputs = future, outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the thread; raises what it met."""
        self._future.result(timeout.total_seconds() if timeout else None)
        return True

    def is_completed(self) -> bool:
        """Whether the thread has done it."""
        return self._future.done()

    def get_future(self) -> Any:
        """A future that is done, and holds the outputs: there is no other way to hand a thread's on."""
        self.wait()
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(self._outputs)
        return done


class OnAnotherThread(Odd):
    """Makes all collectives on a thread of its own, one after the other. Right: their order is kept."""

    deviation = "a backend has a thread of its own"

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size, timeout)
        self._thread = ThreadPoolExecutor(max_workers=1)

    def hand_over(self, name: str, args: Any, more: Any) -> Task:
        """Have the thread do it."""
        noticed(self.deviation)
        inference = torch.is_inference_mode_enabled()  # a thread has its own idea of it
        outputs = [each for each in flat(args[:1]) if isinstance(each, Tensor)]
        return Task(self._thread.submit(self.make, name, inference, args, more), outputs)

    def make(self, name: str, inference: bool, args: Any, more: Any) -> None:
        """On the thread: one collective, to its end."""
        with torch.no_grad(), torch.inference_mode(inference):
            work = getattr(self.inner, name)(*args, **more)
            if work is not None:
                work.wait()

    def shutdown(self) -> None:
        self._thread.shutdown()
        self.inner.shutdown()


class Slow(OnAnotherThread):
    """Takes two milliseconds longer for each collective. Right: late is not wrong."""

    deviation = "a backend is slow"

    def make(self, name: str, inference: bool, args: Any, more: Any) -> None:
        super().make(name, inference, args, more)
        threading.Event().wait(0.002)  # the delay is the point: nothing is waited for


def _handing_over(name: str) -> Callable[..., Any]:
    def hand_over(self: OnAnotherThread, *args: Any, **more: Any) -> Task:
        return self.hand_over(name, args, more)

    return hand_over


for _name in JOINT:
    setattr(OnAnotherThread, _name, _handing_over(_name))


def backend(name: str, group: type[OverGloo]) -> Backend:
    """Register a process group with torch, and describe the backend that it is."""
    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, group, devices=["cpu"])
    return Backend(name=name, process_group=name, imports=(__name__,), lacks=gloo.lacks)


adds_in_reverse = backend("gloo_in_reverse", AddsInReverse)
gathers_by_broadcasts = backend("gloo_by_broadcasts", GathersByBroadcasts)
gathers_in_halves = backend("gloo_in_halves", GathersInHalves)
all_reduces_in_two_steps = backend("gloo_in_two_steps", AllReducesInTwoSteps)
on_another_thread = backend("gloo_on_a_thread", OnAnotherThread)
slow = backend("gloo_slow", Slow)
#: A small machine that says what it has not got. Right: what is declared missing is not judged.
two_ranks = Backend(
    name="two ranks", process_group=gloo.process_group, ranks=2, thread_ranks=0, lacks=dict.fromkeys(LIMITS, "no such")
)
