"""A trial: one requirement tried on one subject in one kind of world, and the facts that its record will keep."""

from __future__ import annotations

import ctypes
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from hypothesis import reject

from harness.data.case import cell_of, key_of
from harness.data.comparison import Allowance, Difference, difference, exact
from harness.data.loss_curves import MOST_CURVES, Curve, curves_of
from harness.vendor.load import Subject
from harness.worlds.base import Disturbed, Outcome, Program, SubjectFailure, World, describe, first_cause
from harness.worlds.make import open_world
from harness.worlds.rank import Rank

#: How many differences are kept of one case.
_MOST_DIFFERENCES = 32
#: How many cases are run to find a smaller one that fails. A number, and not seconds alone: on a machine that is not
#: slow, the same run ends with the same case each time.
_MOST_SMALLER = 200

_most_ranks: ContextVar[int] = ContextVar("most_ranks", default=4)


def most_ranks() -> int:
    """How many ranks the world of the test that is running has; for strategies that draw world sizes."""
    return _most_ranks.get()


class TimeIsUp(Exception):
    """Raised in the controller when a test's timeout passes while no rank is at work."""


class Sized(Protocol):
    """What a trial runs: any case that says how many ranks it is for."""

    @property
    def world_size(self) -> int:
        """How many ranks."""


class Trial:
    """Lives as long as one test, across its examples; keeps worlds warm by size, and counts what was really checked.

    ``most_ranks`` is how many ranks this kind of world has here; strategies draw world sizes up to it. Times are in
    seconds: ``deadline`` for one run on the ranks, ``shrinking_budget`` for looking for a smaller failing case.
    """

    def __init__(
        self,
        kind: str,
        subject: Subject,
        most_ranks: int,
        deadline: float = 60.0,
        shrinking_budget: float = 30.0,
        opener: Callable[..., World] = open_world,
    ) -> None:
        self.kind, self.subject, self.most_ranks = kind, subject, most_ranks
        self.checks = 0
        self.examples = 0
        self.worst = Difference()
        self.ratios: dict[str, float] = {}
        self.ulps: dict[str, list[float]] = {}
        self.world_sizes: set[int] = set()
        self.case: Any = None
        self.misfit = 0  # of the cases left out for want of ranks, how many ranks the smallest needs
        self.outcomes: tuple[Outcome, ...] = ()
        self.notes: list[str] = []
        #: Of the case in hand, one for each comparison that failed, with whose it is.
        self.differences: list[tuple[str, Difference]] = []
        self.curves: list[Curve] = []
        self._pending: SubjectFailure | None = None
        self._hears_out = False
        self._deadline, self.shrinking_budget, self._opener = deadline, shrinking_budget, opener
        self._worlds: dict[int, World] = {}
        self._active: World | None = None
        self._failures: dict[str, SubjectFailure] = {}
        self._tried: set[str] = set()
        self.first_failure: tuple[float, int] | None = None  # when, by the monotonic clock, and at which example
        self._expired = ""
        self._disturbed: Disturbed | None = None

    # What a test calls.

    def run(self, program: Program, case: Sized, *args: Any, ranks: int | None = None) -> list[Any]:
        """Run ``program(rank, case, *args)`` on ``case.world_size`` ranks; what each returned, in rank order.

        A test that saves on some ranks and loads on others runs twice with one case, which knows both sizes, and
        gives the second one as ``ranks``. Two cases in one example would not do: when the shrinking budget is spent,
        only cases that failed are run again. A case for more ranks than this world has is left out. Raises
        SubjectFailure when a rank does anything but return, with the first cause first; Disturbed as a world does.
        """
        __tracebackhide__ = True
        self.settle()
        if self._disturbed is not None:
            raise self._disturbed  # Hypothesis looks for a smaller case all the same
        size = case.world_size if ranks is None else ranks
        self.needs(size)
        self._begin(case, size)
        self._active = world = self._world(size)
        try:
            self.outcomes = world.run(program, case, *args, deadline=self._deadline)
        except Disturbed as error:
            self._disturbed, self.outcomes = error, ()
            raise
        finally:
            self._active = None
        if (cause := first_cause(self.outcomes)) is not None:
            raise self._failure(describe(self.outcomes), cause.fate.value, self.outcomes)
        return [outcome.value for outcome in self.outcomes]

    def needs(self, ranks: int) -> None:
        """Leave the case out if this world has not so many ranks."""
        if ranks > self.most_ranks:
            self.misfit = min(self.misfit or ranks, ranks)
            reject()

    def agree(self, where: str, got: Any, want: Any, within: Allowance = exact) -> None:
        """Require that two trees agree within an allowance; ``where`` says whose, e.g. ``"rank 1"``."""
        __tracebackhide__ = True
        found = difference(got, want, within)
        self.checks += found.leaves
        self._measure(found)
        if len(self.curves) < MOST_CURVES:
            self.curves += curves_of(where, got, want)
        if found.ratio >= self.worst.ratio:
            self.worst = replace(found, path=f"{where}: {found.path}")
        if found.too_much:
            if len(self.differences) < _MOST_DIFFERENCES:
                self.differences.append((where, found))
            self._blame(f"{where}: {found.words()}", "disagreement")

    def holds(self, fact: bool, sentence: str) -> None:
        """Require a fact; ``sentence`` says what was expected and what came."""
        __tracebackhide__ = True
        self.checks += 1
        if not fact:
            self._blame(sentence, "disagreement")

    def refuses(self, program: Program, case: Sized, error: str | tuple[str, ...], match: str) -> None:
        """Require that every rank raises one of the named errors with a message in which ``match`` is found."""
        __tracebackhide__ = True
        names = (error,) if isinstance(error, str) else error
        for number, refusal in enumerate(self.run(refused, case, program)):
            self.checks += 1
            wanted = f"{' or '.join(names)} matching {match!r}"
            if refusal is None:
                self._blame(f"rank {number}: expected {wanted}, but nothing was raised", "not refused")
            elif not set(names) & set(refusal["types"]) or not re.search(match, refusal["message"]):
                came = f"{refusal['types'][0]}: {refusal['message']}"
                self._blame(f"rank {number}: expected {wanted}, but {came!r} was raised", "refused otherwise")

    # What the plugin calls.

    @contextmanager
    def hearing_out(self) -> Iterator[None]:
        """For one example: a comparison that fails does not end it, so that those of the other ranks are known, too.

        The first failure is raised at the end, or before ranks run again; it comes before what follows from it.
        """
        self._hears_out, self._pending = True, None
        try:
            yield
        except Exception:
            self.settle()
            raise
        finally:
            self._hears_out = False
        self.settle()

    def settle(self) -> None:
        """Raise the failure that waits, if there is one."""
        __tracebackhide__ = True
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending

    @contextmanager
    def offering(self) -> Iterator[None]:
        """Let strategies draw world sizes up to what this world has."""
        token = _most_ranks.set(self.most_ranks)
        try:
            yield
        finally:
            _most_ranks.reset(token)

    def time_is_up(self, reason: str) -> None:
        """From another thread: end the run in progress; if there is none, interrupt the controller."""
        self._expired = reason
        world = self._active
        if world is not None:
            world.expire(reason)
        else:
            main = threading.main_thread().ident or 0
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(TimeIsUp))

    def close(self) -> None:
        """End all worlds. Raises SubjectFailure if a rank did not leave cleanly."""
        left = [outcome for world in self._worlds.values() for outcome in world.close()]
        self.notes += [note for world in self._worlds.values() for note in getattr(world, "notes", ())]
        self._worlds.clear()
        if (cause := first_cause(left)) is not None:
            self.outcomes = tuple(left)
            raise SubjectFailure(f"after its work was done, {describe(left)}", cause.fate.value, left)

    def discard(self) -> None:
        """End all worlds, whatever they have to say; for when a failure is known already."""
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()

    # How it works.

    def _blame(self, message: str, cause: str) -> None:
        """A comparison has failed: raise that, now or when all have been heard."""
        __tracebackhide__ = True
        if self._pending is None:
            self._pending = self._failure(message, cause)
        if not self._hears_out:
            self.settle()

    def _begin(self, case: Sized, size: int) -> None:
        """Count the example once, unless shrinking has taken long enough: then only cases are run that ran before.

        They must be, those that passed, too: Hypothesis takes one that ends otherwise than before for flaky. A failure
        that took a whole deadline is not run again at all; it is raised as it was.
        """
        key = key_of(case)
        known = self._failures.get(key)
        slow = self._expired or any(failure.cause == "hung" for failure in self._failures.values())
        if known is not None and slow:
            raise known
        failed = self.first_failure
        spent = failed is not None and (
            self.examples >= failed[1] + _MOST_SMALLER or time.monotonic() > failed[0] + self.shrinking_budget
        )
        if key not in self._tried and (spent or (slow and self._failures)):
            reject()
        self._tried.add(key)
        if case is not self.case:
            self.examples += 1
            self.differences, self.curves = [], []
        self.case = case
        self.world_sizes.add(size)

    def _world(self, size: int) -> World:
        if size not in self._worlds:
            self._worlds[size] = self._opener(self.kind, size, self.subject, deadline=self._deadline)
        return self._worlds[size]

    def _measure(self, found: Difference) -> None:
        """Keep how far off the worst is, by what the case was about."""
        cell = cell_of(self.case) if self.case is not None else ""
        if found.ratio > self.ratios.setdefault(cell, 0.0):
            self.ratios[cell] = found.ratio
            self.ulps.pop(cell, None)
            ulps = [found.off / found.ulp, found.allowed / found.ulp] if found.ulp else []
            if ulps and all(map(math.isfinite, ulps)):  # a float64 far off at 1e-300 has more units than a float holds
                self.ulps[cell] = ulps

    def _failure(self, message: str, cause: str, outcomes: tuple[Outcome, ...] = ()) -> SubjectFailure:
        """What the case in hand is to be failed with, noted so that shrinking knows it."""
        if self.first_failure is None:
            self.first_failure = time.monotonic(), self.examples
        failure = self._failures[key_of(self.case)] = SubjectFailure(message, cause, outcomes)
        return failure


def refused(rank: Rank, case: Any, program: Program) -> dict[str, Any] | None:
    """On every rank: run ``program`` and return what it raised, as data; None if it returned."""
    try:
        program(rank, case)
    except Exception as error:
        return {"types": [cls.__name__ for cls in type(error).__mro__], "message": str(error)}
    return None
