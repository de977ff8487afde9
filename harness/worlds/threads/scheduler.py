"""The lockstep scheduler: n threads of which exactly one runs at a time, so that a run is deterministic.

[Note: the baton]
A thread runs while it holds the baton. It hands the baton on only where it must wait (``pass_until``) or when it
ends. Which waiting thread is next among those that can run comes from ``seed``; 0 means first come, first served.
When nobody can run and somebody still waits, that is a deadlock, and it is *seen*: no clock is involved. Every
waiting thread is then woken with an exception, one at a time, so that each one unwinds and ends.

    two ranks     rank 0: post all_reduce · wait ─┐                  ┌─▶ goes on
                  rank 1:                         └▶ post · (done) ──┘     (hands on when it waits or ends)
"""

from __future__ import annotations

import functools
import queue
import random
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic  # by its name: a program may replace ``time.monotonic``
from typing import Any

import torch

from harness.worlds.base import Fate, Outcome, said, told
from harness.worlds.system.running_mark import mark_running


class Unwind(BaseException):
    """Raised inside a rank that can never go on; not an Exception, so that subjects do not swallow it."""

    def __init__(self, fate: Fate, message: str, stack: str) -> None:
        super().__init__(message)
        self.fate = fate
        self.stack = stack


class Mismatch(RuntimeError):
    """Ranks of one group called different collectives, or the same one with different arguments."""


class Gate:
    """Something that ranks wait for. ``open`` lets all who wait, and all who come later, pass."""

    def __init__(self) -> None:
        self.is_open = False
        self.waiting: list[_Strand] = []


@dataclass
class _Strand:
    """One rank's thread and where it stands."""

    number: int
    thread: threading.Thread
    baton: threading.Lock = field(default_factory=threading.Lock)
    waits_in: Callable[[], str] | None = None
    unwind: Unwind | None = None
    rng: tuple[torch.Tensor, torch.Tensor | None] | None = None
    outcome: Outcome | None = None


class Crew:
    """n threads that live across runs: torch caches by thread, so old threads run the same model many times faster."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._work: list[queue.SimpleQueue[Callable[[], None] | None]] = [queue.SimpleQueue() for _ in range(size)]
        self.threads = [
            threading.Thread(target=self._live, args=(work,), name=f"rank {number}", daemon=True)
            for number, work in enumerate(self._work)
        ]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _live(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (task := work.get()) is not None:
            task()

    def give(self, number: int, task: Callable[[], None]) -> None:
        """Have thread ``number`` run ``task``, after what it has been given before."""
        self._work[number].put(task)

    def close(self) -> None:
        """End the threads."""
        for work in self._work:
            work.put(None)
        for thread in self.threads:
            thread.join()


class Lockstep:
    """Runs one body per rank, one at a time. ``device_rng`` is the accelerator module whose RNG is kept per rank."""

    def __init__(self, crew: Crew, device_rng: Any = None) -> None:
        self.crew = crew
        self.device_rng = device_rng
        self._order = random.Random(0)
        self._first_come = True
        self._strands: list[_Strand] = []
        self._ready: list[_Strand] = []
        self._running: _Strand | None = None
        self._over = threading.Event()
        self._abandoned = False

    def run(self, bodies: Sequence[Callable[[], Any]], seed: int = 0, deadline: float | None = None) -> list[Outcome]:
        """Run the bodies to their ends and say what became of each, in rank order. ``deadline`` is in seconds.

        After a deadline the threads that do not end are still there, and no rank gets the baton any more: the process
        that hosts them must be ended. Another run raises RuntimeError.
        """
        if self._abandoned:
            raise RuntimeError("a rank of this thread world did not end in time: make a new world")
        self._order, self._first_come = random.Random(seed), seed == 0
        self._strands = [_Strand(number, thread) for number, thread in enumerate(self.crew.threads)]
        self._over = threading.Event()
        before = self._rng_state()
        for strand, body in zip(self._strands, bodies, strict=True):
            strand.rng = before
            strand.baton.acquire()
            self.crew.give(strand.number, functools.partial(self._live, strand, body))
        self._ready = list(self._strands)
        self._hand_on()
        if not self._over.wait(deadline):
            return self._out_of_time(deadline)
        self._set_rng_state(before)
        return [self._outcome(strand) for strand in self._strands]

    # What ranks call, always while they hold the baton.

    def pass_until(self, gate: Gate, where: Callable[[], str]) -> None:
        """Wait for ``gate``, letting other ranks run meanwhile. ``where()`` says in words what is waited for."""
        strand = self._current()
        if strand.unwind is not None:
            raise strand.unwind
        if gate.is_open:
            return
        gate.waiting.append(strand)
        strand.waits_in = where
        strand.rng = self._rng_state()
        self._hand_on()
        strand.baton.acquire()
        self._resume(strand)
        if strand.unwind is not None:
            raise strand.unwind
        strand.waits_in = None

    def open(self, gate: Gate) -> None:
        """Open ``gate``: those who wait for it can run again, when their turn comes."""
        gate.is_open = True
        for strand in gate.waiting:
            if strand.unwind is None:
                strand.waits_in = None  # only for its turn: what it waited for may not be there to tell any more
                self._ready.append(strand)
        gate.waiting.clear()

    @property
    def running(self) -> int:
        """The number of the rank that calls. Raises RuntimeError for a thread that is no rank's."""
        return self._current().number

    # The life of a rank.

    def _live(self, strand: _Strand, body: Callable[[], Any]) -> None:
        strand.baton.acquire()
        self._resume(strand)
        try:
            strand.outcome = Outcome(strand.number, Fate.RETURNED, value=body())
        except Unwind as end:
            text = end.stack + "".join(traceback.format_exception(end)[-3:])
            strand.outcome = Outcome(strand.number, end.fate, error=str(end), traceback=text)
        except Mismatch as error:
            strand.outcome = Outcome(strand.number, Fate.MISMATCHED, error=str(error), traceback=told(error))
        except BaseException as error:
            strand.outcome = Outcome(strand.number, Fate.RAISED, error=said(error), traceback=told(error))
        strand.outcome = _at(strand.outcome, monotonic())
        self._hand_on()

    def _resume(self, strand: _Strand) -> None:
        self._running = strand
        mark_running(strand.number)  # for the supervisor, should this process die now
        assert strand.rng is not None
        self._set_rng_state(strand.rng)

    def _hand_on(self) -> None:
        """Give the baton to a rank that can run; find a deadlock if there is none; end the run if all have ended."""
        if self._abandoned:
            return
        if not self._ready:
            self._unwind_one()
        if not self._ready:
            self._over.set()
            return
        place = 0 if self._first_come else self._order.randrange(len(self._ready))
        self._ready.pop(place).baton.release()

    def _unwind_one(self) -> None:
        """Nobody can run: make one waiting rank unwind. It hands on in turn, so all of them come to their ends."""
        stuck = [strand for strand in self._strands if strand.outcome is None]
        if not stuck:
            return
        failed = [s.number for s in self._strands if s.outcome is not None and s.outcome.fate is not Fate.RETURNED]
        if any(strand.unwind is None for strand in stuck):
            message = self._deadlock_words(stuck)
            for strand in stuck:
                fate = Fate.INTERRUPTED if failed else Fate.DEADLOCKED
                words = f"waiting in {_place(strand)}; rank {failed[0]} had failed" if failed else message
                strand.unwind = Unwind(fate, words, self._stack(strand))
        self._ready.append(stuck[0])

    def _deadlock_words(self, stuck: list[_Strand]) -> str:
        lines = [f"deadlock: no rank can run any more ({len(stuck)} of {self.crew.size} wait)"]
        lines += [f"  rank {strand.number} waits in {_place(strand)}" for strand in stuck]
        lines += [f"  rank {s.number} had already returned" for s in self._strands if s.outcome is not None]
        return "\n".join(lines)

    # Deadlines, stacks, random state.

    def _out_of_time(self, deadline: float | None) -> list[Outcome]:
        self._abandoned = True
        runner, now = self._running, monotonic()
        ends = []
        for strand in self._strands:
            if strand.outcome is not None:
                ends.append(strand.outcome)
            elif strand is runner:
                words = f"still running after its deadline of {deadline:g} s"
                ends.append(Outcome(strand.number, Fate.HUNG, error=words, traceback=self._stack(strand), at=now))
            else:
                words = f"waiting in {_place(strand)} while rank {runner.number if runner else '?'} ran on"
                stack = self._stack(strand)
                ends.append(Outcome(strand.number, Fate.INTERRUPTED, error=words, traceback=stack, at=now))
        return ends

    def _stack(self, strand: _Strand) -> str:
        frame = sys._current_frames().get(strand.thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _outcome(self, strand: _Strand) -> Outcome:
        assert strand.outcome is not None
        return strand.outcome

    def _current(self) -> _Strand:
        strand = self._running
        if strand is None or strand.thread is not threading.current_thread():
            raise RuntimeError(
                f"thread {threading.current_thread().name!r} is no rank of this thread world: collectives and stores "
                "can be used from a rank's own thread only; run this in the process world"
            )
        return strand

    def _rng_state(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return torch.get_rng_state(), self.device_rng.get_rng_state() if self.device_rng else None

    def _set_rng_state(self, state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        torch.set_rng_state(state[0])
        if self.device_rng and state[1] is not None:
            self.device_rng.set_rng_state(state[1])


def _place(strand: _Strand) -> str:
    return strand.waits_in() if strand.waits_in else "line for its turn"


def _at(outcome: Outcome, when: float) -> Outcome:
    return Outcome(outcome.rank, outcome.fate, outcome.value, outcome.error, outcome.traceback, outcome.log, when)
