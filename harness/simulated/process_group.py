"""The process group of simulated devices: bytes travel by gloo, collectives take virtual time on streams of their own.

[Note: collectives in virtual time]
A collective is posted to the group's stream of its device, which first waits for the current one. What it reads and
writes is accounted then. It begins when the last rank is ready for it, and when the one before on this group is over::

    rank 0    current stream ─ ready ┐
              group's stream         ├ ··· begin ─── end ┬ a stream that waits for the work
    rank 1    current stream ─── ready ┘

A rank sends what it has at once, and receives when the work is waited for: only then is known when it began. All
ranks then do the arithmetic of all, on CPU copies of what the others have sent.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from harness.process_group.arithmetic import PERFORM, Call
from harness.process_group.methods import CollectiveGroup, CollectiveWork, ranks_of, sizes
from harness.simulated.device import NAME, before_waiting, stream_of_group
from harness.simulated.messages import Part

#: What a collective costs, in µs: to begin, and for each byte that it reads or writes.
LATENCY, BYTE = 10.0, 2e-3
#: Tags of the inner group: how long the next message is, and the message; those of user's messages follow.
_LENGTH, _MESSAGE, _FIRST_OF_USERS = 0, 1, 2
_groups: weakref.WeakSet[SimulatedGroup] = weakref.WeakSet()


@dataclass(eq=False)
class SimulatedWork(CollectiveWork):
    """The handle of a collective. ``kept`` are the tensors that it uses until it is waited for."""

    group: SimulatedGroup
    call: Call
    part: Part
    device: int | None
    kept: tuple[Tensor, ...]
    done: Any = None
    error: Exception | None = None

    def __post_init__(self) -> None:
        super().__init__()
        self.outputs = self.call.outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Have the current stream wait until it is over. Raises RuntimeError if ranks disagree about it."""
        self.group.finish(self)
        if self.device is not None:
            torch.accelerator.current_stream(self.device).wait_event(self.done)
        self.kept = ()
        if self.error is not None:
            raise self.error
        return True

    def keep_until_done(self) -> None:
        """The memory is not used again before the collective is over, even if it is never waited for."""
        if self.device is not None:
            for tensor in self.kept:
                if tensor.device.type == NAME:
                    tensor.record_stream(self.group.stream(self.device))

    def synchronize(self) -> None:
        """The same, under c10d's other name for it."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the host may use the results; asking takes virtual time, as it takes real time elsewhere."""
        self.group.finish(self)
        return self.device is None or bool(self.done.query())

    def is_success(self) -> bool:
        """Whether it is over; one that failed has raised."""
        return self.is_completed()


class SimulatedGroup(CollectiveGroup):
    """A c10d process group of simulated devices, which also takes CPU tensors."""

    def __init__(self, name: str, number: int, ranks: tuple[int, ...], inner: Any) -> None:
        super().__init__(name, number, ranks)
        self._inner = inner
        self._unfinished: deque[SimulatedWork] = deque()
        self._sent: deque[Any] = deque()  # what may not have arrived yet, which is not waited for
        self._finished = self._arrived = 0
        taken: set[int] = {group._place for group in _groups}
        self._place: int = min(set(range(len(taken) + 1)) - taken)
        _groups.add(self)

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors it takes."""
        return [torch.device("cpu"), torch.device(NAME)]

    def getBackendName(self) -> str:
        """The backend's name, as torch asks for it."""
        return NAME

    def _get_backend(self, device: torch.device) -> SimulatedGroup:
        """Who allocates memory for collectives: the group itself."""
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether it does, for a device."""
        return device.type == NAME

    def allocate_tensor(self, numel: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Ordinary memory of the device."""
        return torch.empty(numel, dtype=dtype, device=device)

    def _post(
        self, name: str, opts: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *agree: Any, **more: Any
    ) -> Any:
        call = Call(name, agree, tuple(inputs), tuple(outputs), **more)
        with torch.no_grad(), _disable_current_modes():  # a backend's own work is heard by no rank's modes
            work = self._started(call)
        if name == "barrier":
            work.wait()
            torch.accelerator.synchronize(work.device)
        elif not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    def _started(self, call: Call) -> SimulatedWork:
        tensors, is_barrier = (*call.inputs, *call.outputs), call.name == "barrier"
        device = torch.accelerator.current_device_index() if is_barrier else _device_of(tensors)
        ready = 0.0 if device is None else self._accounted(device, call)
        words = [call.name, *map(str, call.agree)]
        part = Part(ready, words, [_numbers(tensor) for tensor in call.inputs], len(call.outputs), self._finished)
        work = SimulatedWork(self, call, part, device, tensors)
        message = part.message()
        peers = [peer for peer in range(self.size()) if peer != self._number]
        self._sent.append([self._send(message, peer) for peer in peers])
        self._unfinished.append(work)
        return work

    def stream(self, device: int) -> torch.Stream:
        """On which the collectives of a device run."""
        return stream_of_group(self._place, device)

    def _accounted(self, device: int, call: Call) -> float:
        """When this rank is ready: its group's stream waits for the current one, and touches the tensors.

        Collectives posted before may not be over, in virtual time, when this one is ready: the stream's time stays.
        """
        ready: float = torch.ops.simulated.stream_time(device)
        stream = self.stream(device)
        with stream:
            before = torch.ops.simulated.stream_time(device)
        stream.wait_stream(torch.accelerator.current_stream(device))
        with stream:
            torch.ops.simulated.charge(device, call.name, list(call.inputs), list(call.outputs), 0.0)
            torch.ops.simulated.set_stream_time(device, before)
        return ready

    def _send(self, message: Tensor, peer: int) -> list[Any]:
        length = torch.tensor([message.numel()])
        return [length, message, self._inner.send([length], peer, _LENGTH), self._inner.send([message], peer, _MESSAGE)]

    def _received(self, peer: int) -> Part:
        length = torch.zeros(1, dtype=torch.int64)
        self._inner.recv([length], peer, _LENGTH).wait()
        message = torch.empty(int(length), dtype=torch.uint8)
        self._inner.recv([message], peer, _MESSAGE).wait()
        return Part.of(message)

    def finish(self, work: SimulatedWork) -> None:
        """Do what was posted to this group up to ``work``, in order."""
        with torch.no_grad(), _disable_current_modes():
            while work in self._unfinished:
                one = self._unfinished.popleft()
                self._finish(one)
                if one is not work:
                    one.keep_until_done()

    def finish_posted(self) -> None:
        """Do all that was posted."""
        if self._unfinished:
            self.finish(self._unfinished[-1])

    def _finish(self, work: SimulatedWork) -> None:
        work.part.finished = self._finished
        parts = [work.part if peer == self._number else self._received(peer) for peer in range(self.size())]
        for peer, part in enumerate(parts):
            if part.words != work.part.words:
                mine, other = (f"rank {self._ranks[i]} called {' '.join(parts[i].words)}" for i in (self._number, peer))
                raise RuntimeError(f"ranks disagree about a collective of group {self._name}: {mine}, {other}")
        try:
            PERFORM[work.call.name]([self._call_of(peer, part, work.call) for peer, part in enumerate(parts)])
        except Exception as error:  # of all ranks alike: what is reduced has no such reduction
            work.error = error
        self._finished += 1
        for _ in range(min(part.finished for part in parts) - self._arrived):
            self._sent.popleft()
            self._arrived += 1
        if work.device is not None:
            work.done = self._timed(work, max(part.ready for part in parts))

    def _call_of(self, peer: int, part: Part, own: Call) -> Call:
        """A rank's call on the CPU; outputs of others are theirs to write."""
        is_own = peer == self._number
        places = tuple(map(_on_cpu, own.outputs)) if is_own else (None,) * part.outputs
        return Call(own.name, own.agree, tuple(part.inputs), places, own.root, own.op)

    def _timed(self, work: SimulatedWork, begin: float) -> Any:
        assert work.device is not None
        stream = self.stream(work.device)
        moved = sum(tensor.nbytes for tensor in (*work.call.inputs, *work.call.outputs))
        with stream:
            torch.ops.simulated.set_stream_time(work.device, max(begin, torch.ops.simulated.stream_time(work.device)))
            torch.ops.simulated.charge(work.device, work.call.name, [], [], LATENCY + moved * BYTE)
        return stream.record_event()

    # Point to point: the receiver waits, the sender does not.

    def send(self, tensors: Any, dst: int, tag: int) -> Any:
        """Send to group rank ``dst``."""
        return self._inner.send([_numbers(tensor) for tensor in tensors], dst, tag + _FIRST_OF_USERS)

    def recv(self, tensors: Any, src: int, tag: int) -> Any:
        """Receive from group rank ``src``."""
        places = [torch.empty_like(_on_cpu(tensor)) for tensor in tensors]
        self._inner.recv(places, src, tag + _FIRST_OF_USERS).wait()
        for tensor, place in zip(tensors, places, strict=True):
            tensor.data.copy_(place)
        return SimulatedWork(
            self, Call("broadcast", (sizes(tensors),), (), tuple(tensors)), Part(0, [], [], 1, 0), None, ()
        )


def finish_all() -> None:
    """Do what was posted to any group of this process, as a host that waits for its device does."""
    for group in list(_groups):
        group.finish_posted()


def _device_of(tensors: Sequence[Tensor]) -> int | None:
    return next((tensor.device.index for tensor in tensors if tensor.device.type == NAME), None)


def _on_cpu(tensor: Tensor) -> Tensor:
    if tensor.device.type != NAME:
        return tensor.detach()
    same: Tensor = torch.ops.simulated.on_cpu(tensor.detach())
    return same


def _numbers(tensor: Tensor) -> Tensor:
    """A copy on the CPU: what is sent does not change when the memory is used again."""
    return _on_cpu(tensor).clone()


def _make_group(options: Any, _: Any) -> SimulatedGroup:
    store = dist.PrefixStore("simulated", options.store)
    inner = dist.ProcessGroupGloo(store, options.group_rank, options.group_size, options.timeout)
    return SimulatedGroup(options.group_id, options.group_rank, ranks_of(options), inner)


before_waiting.append(finish_all)
dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=[NAME])
