"""The lockstep scheduler: n threads of which exactly one runs at a time, so that a run is deterministic.

[Note: the run token]
A thread runs while it holds the run token. It hands the token on only where it must wait (``pass_until``) or when it
ends. Which waiting thread is next among those that can run comes from ``seed``; 0 means first come, first served.
When no thread can run and one still waits, that is a deadlock, and it is *seen*: no clock is involved. Every
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

from harness.worlds.base import Fate, Outcome, error_summary, fate_of, format_error
from harness.worlds.system.running_mark import mark_running


class Unwind(BaseException):
    """Raised inside a rank that can never go on; not an Exception, so that subjects do not swallow it."""

    def __init__(self, fate: Fate, message: str, stack: str) -> None:
        super().__init__(message)
        self.fate = fate
        self.stack = stack


class Mismatch(RuntimeError):
    """Ranks of one group called different collectives, or the same one with different arguments."""


class Latch:
    """Something that ranks wait for. ``open`` lets all ranks pass that wait now or come later."""

    def __init__(self) -> None:
        self.is_open = False
        self.waiting: list[_RankThread] = []


@dataclass
class _RankThread:
    """One rank's thread and where it stands."""

    number: int
    thread: threading.Thread
    run_token: threading.Lock = field(default_factory=threading.Lock)
    waits_in: Callable[[], str] | None = None
    unwind: Unwind | None = None
    rng: tuple[torch.Tensor, torch.Tensor | None] | None = None
    outcome: Outcome | None = None


class ThreadPool:
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

    def __init__(self, pool: ThreadPool, device_rng: Any = None) -> None:
        self.pool = pool
        self.device_rng = device_rng
        self._order = random.Random(0)
        self._first_come = True
        self._threads: list[_RankThread] = []
        self._ready: list[_RankThread] = []
        self._running: _RankThread | None = None
        self._over = threading.Event()
        self._abandoned = False

    def run(self, bodies: Sequence[Callable[[], Any]], seed: int = 0, deadline: float | None = None) -> list[Outcome]:
        """Run the bodies to their ends and say what became of each, in rank order. ``deadline`` is in seconds.

        After a deadline, threads that do not end are still there, and no rank gets the run token any more: their
        process must be ended. Another run raises RuntimeError.
        """
        if self._abandoned:
            raise RuntimeError("a rank of this thread world did not end in time: make a new world")
        self._order, self._first_come = random.Random(seed), seed == 0
        self._threads = [_RankThread(number, thread) for number, thread in enumerate(self.pool.threads)]
        self._over = threading.Event()
        before = self._rng_state()
        for rank_thread, body in zip(self._threads, bodies, strict=True):
            rank_thread.rng = before
            rank_thread.run_token.acquire()
            self.pool.give(rank_thread.number, functools.partial(self._live, rank_thread, body))
        self._ready = list(self._threads)
        self._hand_on()
        if not self._over.wait(deadline):
            return self._out_of_time(deadline)
        self._set_rng_state(before)
        return [self._outcome(rank_thread) for rank_thread in self._threads]

    # What ranks call, always while they hold the run token.

    def pass_until(self, latch: Latch, where: Callable[[], str]) -> None:
        """Wait for ``latch``, letting other ranks run meanwhile. ``where()`` says in words what is waited for."""
        rank_thread = self._current()
        if rank_thread.unwind is not None:
            raise rank_thread.unwind
        if latch.is_open:
            return
        latch.waiting.append(rank_thread)
        rank_thread.waits_in = where
        rank_thread.rng = self._rng_state()
        self._hand_on()
        rank_thread.run_token.acquire()
        self._resume(rank_thread)
        if rank_thread.unwind is not None:
            raise rank_thread.unwind
        rank_thread.waits_in = None

    def open(self, latch: Latch) -> None:
        """Open ``latch``: ranks that wait for it can run again, when their turn comes."""
        latch.is_open = True
        for rank_thread in latch.waiting:
            if rank_thread.unwind is None:
                rank_thread.waits_in = None  # only for its turn: what it waited for may not be there to tell any more
                self._ready.append(rank_thread)
        latch.waiting.clear()

    @property
    def running(self) -> int:
        """The number of the rank that calls. Raises RuntimeError for a thread that is no rank's."""
        return self._current().number

    # The life of a rank.

    def _live(self, rank_thread: _RankThread, body: Callable[[], Any]) -> None:
        rank_thread.run_token.acquire()
        self._resume(rank_thread)
        try:
            rank_thread.outcome = Outcome(rank_thread.number, Fate.RETURNED, value=body())
        except Unwind as end:
            text = end.stack + "".join(traceback.format_exception(end)[-3:])
            rank_thread.outcome = Outcome(rank_thread.number, end.fate, error=str(end), traceback=text)
        except Mismatch as error:
            text = format_error(error)
            rank_thread.outcome = Outcome(rank_thread.number, Fate.MISMATCHED, error=str(error), traceback=text)
        except BaseException as error:
            words, text = error_summary(error), format_error(error)
            rank_thread.outcome = Outcome(rank_thread.number, fate_of(error), error=words, traceback=text)
        rank_thread.outcome = _at(rank_thread.outcome, monotonic())
        self._hand_on()

    def _resume(self, rank_thread: _RankThread) -> None:
        self._running = rank_thread
        mark_running(rank_thread.number)  # for the supervisor, should this process die now
        assert rank_thread.rng is not None
        self._set_rng_state(rank_thread.rng)

    def _hand_on(self) -> None:
        """Let a rank run that can; find a deadlock if there is none; end the run if all have ended."""
        if self._abandoned:
            return
        if not self._ready:
            self._unwind_one()
        if not self._ready:
            self._over.set()
            return
        place = 0 if self._first_come else self._order.randrange(len(self._ready))
        self._ready.pop(place).run_token.release()

    def _unwind_one(self) -> None:
        """No rank can run: make one waiting rank unwind. It hands on in turn, so all of them come to their ends."""
        stuck = [rank_thread for rank_thread in self._threads if rank_thread.outcome is None]
        if not stuck:
            return
        failed = [s.number for s in self._threads if s.outcome is not None and s.outcome.fate is not Fate.RETURNED]
        if any(rank_thread.unwind is None for rank_thread in stuck):
            message = self._deadlock_words(stuck)
            for rank_thread in stuck:
                fate = Fate.INTERRUPTED if failed else Fate.DEADLOCKED
                words = f"waiting in {_place(rank_thread)}; rank {failed[0]} had failed" if failed else message
                rank_thread.unwind = Unwind(fate, words, self._stack(rank_thread))
        self._ready.append(stuck[0])

    def _deadlock_words(self, stuck: list[_RankThread]) -> str:
        lines = [f"deadlock: no rank can run any more ({len(stuck)} of {self.pool.size} wait)"]
        lines += [f"  rank {rank_thread.number} waits in {_place(rank_thread)}" for rank_thread in stuck]
        lines += [f"  rank {s.number} had already returned" for s in self._threads if s.outcome is not None]
        return "\n".join(lines)

    # Deadlines, stacks, random state.

    def _out_of_time(self, deadline: float | None) -> list[Outcome]:
        self._abandoned = True
        runner, now = self._running, monotonic()
        ends = []
        for rank_thread in self._threads:
            if rank_thread.outcome is not None:
                ends.append(rank_thread.outcome)
            elif rank_thread is runner:
                words = f"still running after its deadline of {deadline:g} s"
                stack = self._stack(rank_thread)
                ends.append(Outcome(rank_thread.number, Fate.HUNG, error=words, traceback=stack, at=now))
            else:
                words = f"waiting in {_place(rank_thread)} while rank {runner.number if runner else '?'} ran on"
                stack = self._stack(rank_thread)
                ends.append(Outcome(rank_thread.number, Fate.INTERRUPTED, error=words, traceback=stack, at=now))
        return ends

    def _stack(self, rank_thread: _RankThread) -> str:
        frame = sys._current_frames().get(rank_thread.thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _outcome(self, rank_thread: _RankThread) -> Outcome:
        assert rank_thread.outcome is not None
        return rank_thread.outcome

    def _current(self) -> _RankThread:
        rank_thread = self._running
        if rank_thread is None or rank_thread.thread is not threading.current_thread():
            raise RuntimeError(
                f"thread {threading.current_thread().name!r} is no rank of this thread world: collectives and stores "
                "can be used from a rank's own thread only; run this in the process world"
            )
        return rank_thread

    def _rng_state(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return torch.get_rng_state(), self.device_rng.get_rng_state() if self.device_rng else None

    def _set_rng_state(self, state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        torch.set_rng_state(state[0])
        if self.device_rng and state[1] is not None:
            self.device_rng.set_rng_state(state[1])


def _place(rank_thread: _RankThread) -> str:
    return rank_thread.waits_in() if rank_thread.waits_in else "line for its turn"


def _at(outcome: Outcome, when: float) -> Outcome:
    return Outcome(outcome.rank, outcome.fate, outcome.value, outcome.error, outcome.traceback, outcome.log, when)
