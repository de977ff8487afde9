"""The process group of the thread world: c10d's methods, each of which posts a call to a meeting.

See [Note: meetings] in ``rendezvous.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from harness.collective_trace import recorder
from harness.collective_trace.reduction_names import op_name
from harness.worlds.threads.arithmetic import Call, op_words
from harness.worlds.threads.rendezvous import Meeting, RendezvousTable


class MeetingWork(dist._Work):
    """The handle of a posted collective; waiting hands the run token on. ``kept`` are the tensors that it reads."""

    def __init__(self, meeting: Meeting, kept: Sequence[Tensor], result: list[Tensor], heard: recorder.Heard) -> None:
        super().__init__()
        self._meeting = meeting
        self._kept = kept
        self._result = result
        self._heard = heard

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until all ranks have joined. Raises ``Mismatch`` if their calls disagree."""
        self._meeting.wait()
        self._kept = ()
        recorder.note_wait(self._heard)
        return True

    def is_completed(self) -> bool:
        """Whether all ranks have joined; what the current stream does later finds the result then."""
        self._meeting.order()
        return self._meeting.latch.is_open

    def is_success(self) -> bool:
        """Whether all ranks have joined and agreed."""
        return self._meeting.latch.is_open and self._meeting.error is None

    def result(self) -> list[Tensor]:
        """The output tensors, once there."""
        self.wait()
        return self._result

    def get_future(self) -> Future[list[Tensor]]:
        """A completed future: asking for it waits, as a thread blocked in a future could not hand on the run token."""
        self.wait()
        future: Future[list[Tensor]] = Future()
        future.set_result(self._result)
        return future


class LockstepGroup(dist.ProcessGroup):
    """A c10d process group whose ranks are threads in lockstep. All methods have c10d's own names and arguments."""

    def __init__(self, table: RendezvousTable, name: str, rank: int, ranks: tuple[int, ...]) -> None:
        super().__init__(rank, len(ranks))
        self._table, self._name, self._number, self._ranks = table, name, rank, ranks
        self._calls = 0

    def size(self) -> int:
        """How many ranks the group has."""
        return len(self._ranks)

    def rank(self) -> int:
        """This rank's place in the group."""
        return self._number

    @property
    def group_name(self) -> str:
        """The name under which torch registered the group."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors it takes, which torch's own state dicts ask for before they broadcast."""
        return [torch.device("cpu")]

    def getBackendName(self) -> str:
        """The backend's name, as torch asks for it."""
        return "lockstep"

    def _post(
        self, name: str, opts: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *agree: Any, **more: Any
    ) -> Any:
        self._calls += 1
        call = Call(name, agree, tuple(inputs), tuple(outputs), **more)
        reduction = op_name(call.op) if call.op is not None else None
        is_async = getattr(opts, "asyncOp", True)
        heard = recorder.note(name.removesuffix("_single"), inputs, outputs, reduction, self._ranks, is_async)
        meeting = self._table.meeting(self._name, self._calls, self._ranks)
        meeting.join(self._number, call)
        return MeetingWork(meeting, inputs, list(outputs), heard)

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce to all ranks; one tensor or several."""
        tensors, op = _listed(tensors), _op(opts)
        return self._post("all_reduce", opts, tensors, tensors, _sizes(tensors), op_words(op), op=op)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """Reduce to the root."""
        op = _op(opts)
        agree = (_sizes(tensors), op_words(op), _root(opts))
        return self._post("reduce", opts, tensors, tensors, *agree, op=op, root=opts.rootRank)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce a list of tensors, one for each rank."""
        _expect(len(inputs) == 1 and len(inputs[0]) == self.size(), "reduce_scatter", f"{self.size()} input tensors")
        op = _op(opts)
        return self._post("reduce_scatter", opts, inputs[0], outputs, _sizes(inputs[0]), op_words(op), op=op)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce pairs of tensors, each input as long as its output times the ranks."""
        for target, source in zip(outputs, inputs, strict=True):
            _expect(
                source.numel() == target.numel() * self.size() and source.dtype == target.dtype,
                "reduce_scatter_single",
                f"an input of {self.size()} × the output's {target.numel()} elements and of its dtype {target.dtype}, "
                f"got {source.numel()} of {source.dtype}",
            )
        op = _op(opts)
        return self._post("reduce_scatter_single", opts, inputs, outputs, _sizes(inputs), op_words(op), op=op)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Reduce one tensor and scatter it."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    # Gathers.

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather into a list."""
        targets, source = outputs[0], _listed(inputs)[0]
        _expect(len(targets) == self.size(), "all_gather", f"{self.size()} output tensors, got {len(targets)}")
        _expect(
            targets[self._number].numel() == source.numel(),
            "all_gather",
            f"an output of {source.numel()} elements at this rank's place, got {targets[self._number].numel()}",
        )
        return self._post("all_gather", opts, [source], targets, _sizes(targets))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather pairs of tensors, each output as long as its input times the ranks."""
        for target, source in zip(outputs, inputs, strict=True):
            _expect(
                target.numel() == source.numel() * self.size() and source.dtype == target.dtype,
                "all_gather_single",
                f"an output of {self.size()} × the input's {source.numel()} elements and of its dtype {source.dtype}, "
                f"got {target.numel()} of {target.dtype}",
            )
        return self._post("all_gather_single", opts, inputs, outputs, _sizes(inputs))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Gather into one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather several tensors into lists, one collective after the other."""
        works = [self.allgather([targets], [source]) for targets, source in zip(output_lists, inputs, strict=True)]
        for work in works[:-1]:
            work.wait()
        return works[-1]

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Gather into a list on the root."""
        targets = outputs[0] if outputs else []
        return self._post("gather", opts, inputs, targets, _sizes(inputs), _root(opts), root=opts.rootRank)

    # One to many, many to many.

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """Send the root's tensors to all ranks."""
        return self._post("broadcast", opts, tensors, tensors, _sizes(tensors), _root(opts), root=opts.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Send the root's r-th tensor to rank r."""
        sources = inputs[0] if inputs else []
        if self._number == opts.rootRank:
            _expect(len(sources) == self.size(), "scatter", f"{self.size()} input tensors, got {len(sources)}")
        return self._post("scatter", opts, sources, outputs, _sizes(outputs), _root(opts), root=opts.rootRank)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Exchange lists of tensors; sizes may differ from pair to pair."""
        _expect(len(outputs) == len(inputs) == self.size(), "all_to_all", f"{self.size()} inputs and outputs")
        return self._post("all_to_all", opts, inputs, outputs, str(inputs[0].dtype))

    def all_to_all_single(self, output: Tensor, input: Tensor, to: list[int], of: list[int], opts: Any = None) -> Any:
        """Exchange parts of one tensor, cut along dim 0: evenly, or in the sizes given."""
        outputs = output.split(to) if to else output.chunk(self.size())
        inputs = input.split(of) if of else input.chunk(self.size())
        return self.alltoall(list(outputs), list(inputs), opts)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        return self._post("barrier", opts, [], [])

    # Point to point: a meeting of two, matched in order by sender, receiver and tag.

    def send(self, tensors: Any, dst: int, tag: int) -> Any:
        """Send to group rank ``dst``."""
        heard = recorder.note("send", tensors, [], None, self._ranks, None)
        return self._parcel(tensors, self._number, dst, tag, heard)

    def recv(self, tensors: Any, src: int, tag: int) -> Any:
        """Receive from group rank ``src``."""
        heard = recorder.note("recv", [], tensors, None, self._ranks, None)
        return self._parcel(tensors, src, self._number, tag, heard)

    def _parcel(self, tensors: Any, src: int, dst: int, tag: int, heard: recorder.Heard) -> Any:
        queue = self._table.parcels.setdefault((self._name, src, dst, tag), [])
        place = 0 if self._number == src else 1
        fitting = [m for m in queue if place not in m.calls]
        name = f"{self._name}: {self._ranks[src]}→{self._ranks[dst]}"
        meeting = fitting[0] if fitting else Meeting(self._table, (name, tag), (self._ranks[src], self._ranks[dst]))
        self._table.meetings[meeting.key] = meeting
        queue.remove(meeting) if fitting else queue.append(meeting)
        meeting.join(place, Call("broadcast", (_sizes(tensors), "point to point"), tuple(tensors), tuple(tensors)))
        return MeetingWork(meeting, tensors, list(tensors), heard)

    # What torch 2.13 renamed, under the names that older ones call.

    _allgather_base: Any = all_gather_single
    _reduce_scatter_base: Any = reduce_scatter_single
    alltoall_base: Any = all_to_all_single
    allgather_into_tensor_coalesced: Any = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced: Any = reduce_scatter_single_coalesced

    # The coalescing manager of c10d: calls are collected by torch and arrive in their coalesced forms.

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> None:
        pass


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _op(opts: Any) -> Any:
    return opts.reduceOp if opts is not None else dist.ReduceOp(dist.ReduceOp.SUM)


def _root(opts: Any) -> str:
    return f"root={opts.rootRank}"


def _sizes(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def _expect(holds: bool, name: str, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {wanted}")
