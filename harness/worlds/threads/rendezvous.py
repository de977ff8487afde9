"""Where ranks in lockstep meet: their calls are checked against each other, and the last to come does the work for all.

[Note: meetings]
The k-th call of a rank on a group joins the group's k-th meeting. Joining never blocks: a collective is posted, and
its ``Work`` is what blocks, until all ranks of the group have joined. So an asynchronous collective that is waited for
too late, or never, behaves here as it would on a device. The last rank to join finds all calls, does the arithmetic
for all ranks, and opens the latch. A call that does not fit the calls already there raises ``Mismatch`` in every rank
of the meeting, with the call of each.

[Note: streams]
On a device the arithmetic is queued on the current stream of the last rank to join. It reads and writes tensors on
which streams of other ranks still work, and is not over when the latch opens::

    stream of rank 0    writes its input ─ joins ┐           ┌ waits ─ reads its output
    stream of rank 1    writes its input ─ joins ┴ arithmetic ┴ waits ─ reads its output

So each rank records an event when it joins, which the arithmetic waits for; where a rank waits for the ``Work``, its
current stream waits for the event that follows the arithmetic. A stream that waits for nothing may see anything, as on
a real process group; and as there, a ``Work`` keeps its rank's tensors until it is waited for, since memory that is
freed before may be written again on the stream that it came from. A CPU's streams and events do nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from harness.process_group.arithmetic import PERFORM, Call
from harness.worlds.threads.scheduler import Latch, Lockstep, Mismatch


@dataclass
class Meeting:
    """One collective of one group: the calls so far, by group rank, and the latch that opens when all are there."""

    table: RendezvousTable
    key: tuple[str, int]
    ranks: tuple[int, ...]
    latch: Latch = field(default_factory=Latch)
    calls: dict[int, Call] = field(default_factory=dict)
    error: Exception | None = None
    #: Events: each rank's, on the stream on which it joined; and the one after the arithmetic, see [Note: streams].
    joined: list[Any] = field(default_factory=list)
    performed: Any = None

    def join(self, number: int, call: Call) -> None:
        """Add the call of group rank ``number``; check it, and perform the collective if it was the last."""
        others = list(self.calls.items())
        self.calls[number] = call
        stream = self.table.device.current_stream()
        self.joined.append(stream.record_event())
        if others and (others[0][1].name, others[0][1].agree) != (call.name, call.agree):
            self._fail(Mismatch(self._mismatch_words()))
        if len(self.calls) < len(self.ranks):
            return
        del self.table.meetings[self.key]
        for event in self.joined:
            stream.wait_event(event)
        try:
            with torch.no_grad(), _unheard():
                PERFORM[call.name]([self.calls[i] for i in range(len(self.ranks))])
        except Exception as error:
            self._fail(error)
        self.performed = stream.record_event()
        self.calls.clear()  # a rank that has yet to wake holds no tensors of others
        self.table.lockstep.open(self.latch)

    def wait(self) -> None:
        """Hand the run token on until all ranks have joined."""
        if self.error is not None:
            raise self.error
        self.table.lockstep.pass_until(self.latch, self.words)
        if self.error is not None:
            raise self.error
        self.order()

    def order(self) -> None:
        """Have the current stream wait for the arithmetic, if that has been done."""
        if self.performed is not None:
            self.table.device.current_stream().wait_event(self.performed)

    def words(self) -> str:
        """Which collective this is and which ranks are missing, for messages about waiting."""
        call = next(iter(self.calls.values()))
        missing = [rank for number, rank in enumerate(self.ranks) if number not in self.calls]
        absent = f", not yet joined by rank {', '.join(map(str, missing))}" if missing else ""
        return f"{call.words()} [call {self.key[1]} on group {self.key[0]} of ranks {list(self.ranks)}{absent}]"

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.table.lockstep.open(self.latch)
        raise error

    def _mismatch_words(self) -> str:
        lines = [f"ranks disagree about call {self.key[1]} on group {self.key[0]} of ranks {list(self.ranks)}:"]
        lines += [f"  rank {self.ranks[number]} called {call.words()}" for number, call in sorted(self.calls.items())]
        return "\n".join(lines)


def _unheard() -> AbstractContextManager[Any]:
    """A backend's own work is heard by no rank's modes; where there are none, leaving them costs more than a copy."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


@dataclass
class RendezvousTable:
    """Where the ranks of one run meet, and the module of their device. Meetings that have taken place are forgotten."""

    lockstep: Lockstep
    device: Any
    device_type: str
    meetings: dict[tuple[str, int], Meeting] = field(default_factory=dict)
    parcels: dict[tuple[str, int, int, int], list[Meeting]] = field(default_factory=dict)

    def meeting(self, group: str, number: int, ranks: tuple[int, ...]) -> Meeting:
        """The ``number``-th meeting of ``group``."""
        return self.meetings.setdefault((group, number), Meeting(self, (group, number), ranks))

    def unfinished(self) -> list[Meeting]:
        """Meetings that some ranks joined and others never did."""
        return list(self.meetings.values()) + [m for queue in self.parcels.values() for m in queue]
