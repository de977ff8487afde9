"""Reductions under way, oldest first, so that they run while backward goes on; and how many may hold their inputs.

With room for one, backward through c, b, a goes::

    c: start c's    b: wait for c's reduce-scatter, start b's    a: wait for b's, start a's    end: wait for all

A result is handed out when there is nothing left to wait for: on a device, whose lane keeps the order, once it has been
started; on a CPU, with the next one, unless it is wanted ``at_once``. An all-reduce may take until the one after.
They have a lane of their own. What waits is the stream that computes, before memory is used again; a CPU waits itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from reference_models.fsdp.communication.collectives import Reduction
from reference_models.fsdp.communication.lane import HERE, Lane


class _Holding(NamedTuple):
    """A reduction whose input is in memory until it has been read."""

    reduction: Reduction
    rows: Tensor
    read: Any


class Receiver(Protocol):
    """What gets the result of a reduction."""

    def receive(self, reduction: Reduction) -> None:
        """Finish it, and take its parts."""
        ...


class ReductionQueue:
    """The reductions of one tree of modules. ``room`` is how many inputs may be in memory at a time."""

    def __init__(self, lane: Lane = HERE, room: int = 1) -> None:
        self.lane, self.room = lane, room
        self.awaits: object = None  # what has to end a backward: a call, and then the handle that it returns
        self._holding: deque[_Holding] = deque()
        self._results: deque[tuple[Reduction, Receiver]] = deque()

    def make_room(self) -> None:
        """Wait until one more reduction may be started."""
        while len(self._holding) >= self.room:
            oldest = self._holding.popleft()
            with self.lane.beside():
                oldest.reduction.advance()
                self._hand_out(self.room)
            self.lane.lead(oldest.read)

    def start(self, reduction: Reduction, rows: Tensor, receiver: Receiver | None) -> None:
        """Start a reduction of ``rows``; without a receiver its result is kept where it was made."""
        self.lane.follow()
        with self.lane.beside():
            reduction.start(rows)
            self._holding.append(_Holding(reduction, rows, self.lane.mark()))
            if receiver is not None:
                self._results.append((reduction, receiver))
            self._hand_out(self.room + 1)

    def finish(self, waits: bool = True) -> None:
        """Hand out the results of all of them, in the order in which they were started, and wait for them.

        Unless it ``waits``, the stream that computes goes on beside the last of them, which keep their memory.
        """
        with self.lane.beside():
            for held in self._holding:
                held.reduction.advance()
            self._hand_out(0)
        if waits:
            self.lane.lead()
            self._holding.clear()

    def _hand_out(self, most: int) -> None:
        """Hand out results, oldest first, up to one that is not there, and of those all but ``most``."""
        while self._results and (len(self._results) > most or self._results[0][0].is_there):
            reduction, receiver = self._results.popleft()
            receiver.receive(reduction)

    def drop(self) -> None:
        """Wait for all of them and forget their results."""
        self.awaits = None
        with self.lane.beside():
            for reduction in (*(held.reduction for held in self._holding), *(each for each, _ in self._results)):
                reduction.wait()
        self.lane.lead()
        self._holding.clear()
        self._results.clear()
