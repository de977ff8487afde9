"""Worlds whose ranks live in supervised worker processes: a crash, hang or ``kill -9`` there is an outcome here.

The thread world is one worker that carries all ranks, the process world one worker a rank. Either way::

    run ──▶ workers are started if there are none ──▶ supervise.py waits for all of them at once ──▶ outcomes
                                                     └─ after any failure all workers are killed

See ``worker.py`` for the other end, ``attribution.py`` for which rank is to blame.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.vendor.api import Backend
from harness.worlds.base import Disturbed, Fate, NotRun, Outcome, Program, World, WorldCannotStart
from harness.worlds.devices import Lease
from harness.worlds.workers.handle import WorkerHandle
from harness.worlds.workers.supervise import CannotStart, Watch
from harness.worlds.workers.team import Starts, Team
from harness.worlds.workers.teardown import leave, release
from harness.worlds.workers.worker import RoleFactory

#: How long workers may take to start and to take their roles: seconds are little on a busy machine.
START_SECONDS = 120.0

#: How many processes may wait for their next world: more than a run uses, fewer than many runs in one process would.
MOST_KEPT = 32

_ADVICE = (
    "This says nothing about the subject. If it was the kernel's out-of-memory killer (see `dmesg`), use fewer workers "
    "or a machine with more memory; then run this row again"
)

_pool: dict[Hashable, Team] = {}
_fork_refused = ""


class SupervisedWorld(World):
    """Ranks in worker processes. ``notes`` says what was other than usual about how they were started."""

    def __init__(
        self,
        kind: str,
        carried: Sequence[tuple[int, ...]],
        backend: Backend,
        make_roles: Callable[[Path], Sequence[RoleFactory]],
        *,
        deadline: float = 60.0,
        key: Hashable = None,
        starts: Starts | None = None,
        lease: Lease | None = None,
    ) -> None:
        """``carried`` has the ranks of each worker; ``make_roles`` their roles, given a path where they can meet.

        ``starts`` starts a worker where its ranks are to be, if not here. While ranks run or leave, the world has its
        ``lease``.
        """
        self.kind = kind
        self.size = sum(len(ranks) for ranks in carried)
        self.notes: list[str] = []
        self._carried, self._backend, self._make_roles = carried, backend, make_roles
        self._deadline, self._lease = deadline, lease or Lease(backend)
        self._starts = starts or partial(WorkerHandle, files=self._lease.files)
        self._key = (kind, key, self._lease.files, os.getpid()) if backend.persistent else None
        self._team: Team | None = None
        self._refusal: WorldCannotStart | None = None
        self._reason = ""
        self._is_closed = False
        self._lock = threading.RLock()  # guards the bell; re-entrant, since a signal handler may expire
        self._bell, self._ring = os.pipe()

    def run(self, program: Program, *args: Any, deadline: float | None = None) -> tuple[Outcome, ...]:
        """Run ``program(rank, *args)`` on every rank, see ``World.run``."""
        if self._is_closed:
            raise ValueError("this world is closed: open a new one")
        pickled = _pickled(program, args)
        limit = self._deadline if deadline is None else deadline
        with self._lease:
            try:
                outcomes = self._undisturbed(pickled, limit)
            except BaseException:  # Ctrl-C too
                self._discard()
                raise
            finally:
                self._silence()
            if not _all_returned(outcomes):
                self._discard()
        return tuple(outcomes)

    def expire(self, reason: str) -> None:
        """End the run in progress now, from another thread; between two runs, the next one ends at once."""
        with self._lock:
            if not self._is_closed and not self._reason:
                self._reason = reason
                os.write(self._ring, b"!")

    def close(self) -> tuple[Outcome, ...]:
        """Let every worker leave, judge how it left, and leave nothing behind."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._bell)
                os.close(self._ring)
        team, self._team = self._team, None
        if team is None:
            return tuple(Outcome(rank, Fate.RETURNED, at=time.monotonic()) for rank in range(self.size))
        with self._lease:
            return self._closed(team)

    def _closed(self, team: Team) -> tuple[Outcome, ...]:
        try:
            wrong = release(team, self.notes) if self._key is not None else {}
            if not team.is_whole():
                self.notes.append("rank processes were not kept: a program removed their files")
            elif self._key is not None and not team.has_role:
                _keep(self._key, team)
                return tuple(Outcome(rank, Fate.RETURNED, at=time.monotonic()) for rank in range(self.size))
            outcomes = leave(team, wrong)
        except BaseException:
            team.end()
            raise
        team.end()
        return tuple(sorted(outcomes, key=lambda outcome: outcome.rank))

    def __del__(self) -> None:
        """A world that was not closed does not outlive its last reference."""
        if not getattr(self, "_is_closed", True):
            self._discard()
            self.close()

    def _undisturbed(self, pickled: bytes, limit: float) -> list[Outcome]:
        """Run, and once more if something from outside disturbs that."""
        try:
            return self._run(pickled, limit)
        except Disturbed as error:
            first = str(error)
        self._discard()
        words = f"{first}: the {self.size} ranks are started again, and their run is repeated"
        warnings.warn(words, RuntimeWarning, stacklevel=3)
        try:
            outcomes = self._run(pickled, limit)
            if not self._reason or _all_returned(outcomes):
                return outcomes
            second = self._reason
        except (Disturbed, NotRun) as error:
            second = str(error).partition("\n")[0]
        raise Disturbed(f"{first}; when the ranks were started again: {second}. {_ADVICE}")

    def _run(self, pickled: bytes, limit: float) -> list[Outcome]:
        if self._refusal is not None:  # Hypothesis tries a test that fails with many cases
            raise self._refusal
        try:
            return self._watched(pickled, limit)
        except CannotStart as error:
            if not error.unsafe:
                raise self._refused(error) from None
            self._refuse_fork(str(error))
        self._discard()
        try:
            return self._watched(pickled, limit)
        except CannotStart as error:
            raise self._refused(error) from None

    def _watched(self, pickled: bytes, limit: float) -> list[Outcome]:
        if self._team is not None and self._team.spoilt:
            self.notes.append(f"rank processes were started anew: a program {self._team.spoilt}")
            self._discard()
        if self._team is None:
            self._team = self._start()
        roles = self._make_roles(self._team.new_store())
        return Watch(self._team, limit, START_SECONDS, self._bell, lambda: self._reason, self.notes).run(roles, pickled)

    def _start(self) -> Team:
        kept = _pool.pop(self._key, None)
        if kept is not None and all(worker.is_idle() for worker in kept.workers) and kept.is_whole():
            return kept
        if kept is not None:
            kept.end()
            self.notes.append("a rank process died while it waited for its next world")
        method = "spawn" if _fork_refused else self._backend.start_method
        if _fork_refused and self._backend.start_method == "forkserver":
            self._note_spawn()
        try:
            return Team(self._carried, self._backend, method, self._starts)
        except OSError as error:
            raise CannotStart(f"no process could be made: {type(error).__name__}: {error}") from error

    def _refuse_fork(self, hazard: str) -> None:
        global _fork_refused
        _fork_refused = hazard

    def _note_spawn(self) -> None:
        note = f"rank processes are spawned, since forking is unsafe here: {_fork_refused}"
        if note not in self.notes:
            self.notes.append(note)

    def _refused(self, error: CannotStart) -> WorldCannotStart:
        reason, _, evidence = str(error).partition("\n")
        world = f"the {self.kind} world of {self.size} ranks on {self._backend.name}"
        refusal = WorldCannotStart(f"cannot start: {reason}\n{world}: {evidence}")
        if not self._reason:  # else its time was up, and it may have more the next time
            self._refusal = refusal
        return refusal

    def _silence(self) -> None:
        """Forget an expiry that has had its effect."""
        with self._lock:
            if self._reason:
                self._reason = ""
                os.read(self._bell, 1)

    def _discard(self) -> None:
        team, self._team = self._team, None
        if team is not None:
            team.end()


# Workers that wait for their next world.


def _keep(key: Hashable, team: Team) -> None:
    """Keep a team for the next world of its key; those that were used longest ago make room."""
    _pool[key] = team
    while sum(len(kept.workers) for kept in _pool.values()) > MOST_KEPT:
        _end(_pool.pop(next(iter(_pool))))


def shutdown_pool() -> tuple[Outcome, ...]:
    """End the rank processes that persistent backends keep between worlds; how each one left."""
    return tuple(end for key in list(_pool) for end in _end(_pool.pop(key)))


def _end(team: Team) -> list[Outcome]:
    try:
        return leave(team)
    finally:
        team.end()


def _all_returned(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.fate is Fate.RETURNED for outcome in outcomes)


def _pickled(program: Program, args: tuple[Any, ...]) -> bytes:
    if getattr(program, "__module__", "") == "__main__":
        raise ValueError(
            f"program {program!r} is defined in the main script: put it into a module that ranks can import"
        )
    try:
        return pickle.dumps((program, args))
    except Exception as error:
        raise ValueError(
            f"program and arguments must travel by pickle, but {type(error).__name__}: {error}; "
            "a program is a function at the top of a module"
        ) from error
