"""The process group of the thread world: c10d's methods, each of which posts a call to a meeting.

See [Note: meetings] in ``rendezvous.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from harness.collective_trace import recorder
from harness.collective_trace.reduction_names import op_name
from harness.process_group.arithmetic import Call
from harness.process_group.methods import CollectiveGroup, CollectiveWork, sizes
from harness.worlds.threads.rendezvous import Meeting, RendezvousTable


class MeetingWork(CollectiveWork):
    """The handle of a posted collective; waiting hands the run token on. ``kept`` are the tensors that it reads."""

    def __init__(self, meeting: Meeting, kept: Sequence[Tensor], result: list[Tensor], heard: recorder.Heard) -> None:
        super().__init__()
        self._meeting = meeting
        self._kept = kept
        self.outputs = result
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


class LockstepGroup(CollectiveGroup):
    """A c10d process group whose ranks are threads in lockstep."""

    def __init__(self, table: RendezvousTable, name: str, rank: int, ranks: tuple[int, ...]) -> None:
        super().__init__(name, rank, ranks)
        self._table, self._calls = table, 0

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors it takes, which torch's own state dicts ask for before they broadcast."""
        return [torch.device(kind) for kind in dict.fromkeys(("cpu", self._table.device_type))]

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
        meeting.join(place, Call("broadcast", (sizes(tensors), "point to point"), tuple(tensors), tuple(tensors)))
        return MeetingWork(meeting, tensors, list(tensors), heard)
