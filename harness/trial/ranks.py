"""The ranks of one test: worlds by size, kept open from example to example, and outcomes turned into failures.

run(2, program, case)  ─▶  World of 2 ranks  ─▶  all returned: [value of rank 0, value of rank 1]
                                             └▶  else: SubjectFailure with the first cause
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from harness.vendor.api import Implementation
from harness.vendor.bounds import NotClaimed, set_judged
from harness.vendor.features import Feature
from harness.worlds.base import (
    Disturbed,
    Fate,
    OurFault,
    Outcome,
    Program,
    SubjectFailure,
    World,
    describe,
    first_cause,
)
from harness.worlds.rank import Rank

_most_ranks: ContextVar[int] = ContextVar("most_ranks", default=4)


def most_ranks() -> int:
    """How many ranks the world of the running test has; for strategies that draw world sizes."""
    return _most_ranks.get()


@contextmanager
def offering(ranks: int, implementation: Implementation, on: str) -> Iterator[None]:
    """In this block, ``most_ranks()`` is ``ranks``, and this process judges the implementation on such devices."""
    token, before = _most_ranks.set(ranks), set_judged(implementation, on)
    try:
        yield
    finally:
        _most_ranks.reset(token)
        set_judged(*before)


class TimeIsUp(Exception):
    """Raised in the controller when a test's timeout passes while no rank runs."""

    def __str__(self) -> str:
        return "the timeout passed while no rank ran: give it more by --timeout, or draw fewer cases"


class Sized(Protocol):
    """What a trial runs: any case that says how many ranks it is for."""

    @property
    def world_size(self) -> int:
        """How many ranks."""


def asking(rank: Rank, case: Any, program: Program, *args: Any) -> Any:
    """On every rank: what a program returns, in a list; or the feature that it asks for and that is not claimed."""
    try:
        return [program(rank, case, *args)]
    except NotClaimed as asked:
        return str(asked.feature)


class Ranks:
    """Runs programs on ranks. ``opener(size)`` opens a world; ``deadline`` is for one run, in seconds.

    ``outcomes`` has those of the last run, or of ranks that did not leave cleanly; ``disturbed`` is what ended a run
    from outside, if anything did.
    """

    def __init__(self, opener: Callable[[int], World], deadline: float) -> None:
        self.outcomes: tuple[Outcome, ...] = ()
        self._opener, self._deadline = opener, deadline
        self._worlds: dict[int, World] = {}
        self._active: World | None = None
        self.disturbed: Disturbed | None = None

    def run(self, size: int, program: Program, case: Any, *args: Any) -> list[Any]:
        """What ``program(rank, case, *args)`` returned on each of ``size`` ranks, in rank order.

        Raises SubjectFailure if a rank did not return, OurFault if an assertion of ours ended it, NotClaimed if the
        program asks for what is not claimed, Disturbed as a world does.
        """
        __tracebackhide__ = True
        if size not in self._worlds:
            self._worlds[size] = self._opener(size)
        self._active = world = self._worlds[size]
        try:
            self.outcomes = _unpacked(world.run(asking, case, program, *args, deadline=self._deadline))
        except Disturbed as error:
            self.disturbed, self.outcomes = error, ()
            raise
        finally:
            self._active = None
        _raise_first_cause(self.outcomes)
        return [outcome.value for outcome in self.outcomes]

    def expire(self, reason: str) -> None:
        """From another thread: end the run in progress; if there is none, raise TimeIsUp in the main thread."""
        world = self._active
        if world is not None:
            world.expire(reason)
        else:
            main = threading.main_thread().ident or 0
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(TimeIsUp))

    def close(self) -> None:
        """End all worlds. Raises SubjectFailure if a rank did not leave cleanly."""
        left = self.discard()
        self.outcomes = left if first_cause(left) is not None else self.outcomes
        _raise_first_cause(left, "after its work was done, ")

    def discard(self) -> tuple[Outcome, ...]:
        """End all worlds; how ranks left, where one did not leave cleanly."""
        left = tuple(outcome for world in self._worlds.values() for outcome in world.close())
        self._worlds.clear()
        return left


def _unpacked(outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
    """The outcomes of the program that was asking. Raises NotClaimed if it asked for what is not claimed."""
    for outcome in outcomes:
        if isinstance(outcome.value, str):
            raise NotClaimed(Feature(outcome.value))
    return tuple(replace(each, value=each.value[0]) if isinstance(each.value, list) else each for each in outcomes)


def _raise_first_cause(outcomes: tuple[Outcome, ...], when: str = "") -> None:
    __tracebackhide__ = True
    if (cause := first_cause(outcomes)) is not None:
        if cause.fate is Fate.ASSERTED:
            raise OurFault(f"{when}{describe(outcomes)}\n{cause.traceback}")
        raise SubjectFailure(f"{when}{describe(outcomes)}", cause.fate.value, outcomes)
