"""Opening a world by name: ``open_world("processes", 2, Subject("torch", "gloo"))``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from harness.data.kinds import ATTACHED, KINDS
from harness.vendor.api import Backend
from harness.vendor.load import Subject, load_backend
from harness.worlds.attached.fleet import fleet
from harness.worlds.base import World
from harness.worlds.devices import leased
from harness.worlds.workers.supervised_world import SupervisedWorld
from harness.worlds.workers.worker import RoleFactory


def open_world(kind: str, size: int, subject: Subject, *, seed: int = 0, deadline: float = 60.0) -> World:
    """``size`` ranks of ``subject``: as threads of one process in lockstep, as a process each, or a launcher's.

    ``seed`` decides the order in which thread ranks run; ``deadline`` is each run's, in seconds, unless a run has
    its own. Raises ValueError for an unknown kind, or a size that the backend does not offer.
    """
    backend = load_backend(subject.backend)
    _check(kind, size, backend)
    if kind == "threads":
        return _threads(size, subject, backend, seed, deadline)
    if kind == ATTACHED:
        return _attached(size, subject, backend, deadline)
    return _processes(size, subject, backend, deadline)


def _threads(size: int, subject: Subject, backend: Backend, seed: int, deadline: float) -> World:
    def roles(_: Path) -> list[RoleFactory]:
        from harness.worlds.threads.role import (
            ThreadRole,  # installs a process-group backend, so not before ranks start
        )

        return [partial(ThreadRole, size, subject, seed)]

    carried, lease = [tuple(range(size))], leased(backend, 1)
    return SupervisedWorld(
        "threads", carried, lease.backend, roles, deadline=deadline, key=(subject, size), lease=lease
    )


def _processes(size: int, subject: Subject, backend: Backend, deadline: float) -> World:
    def roles(store: Path) -> list[RoleFactory]:
        # DTensor, a second of importing: not before ranks start
        from harness.worlds.processes.role import ProcessRole, file_store

        opened = partial(file_store, str(store), size)
        return [partial(ProcessRole, rank, size, subject, opened) for rank in range(size)]

    carried, lease = [(rank,) for rank in range(size)], leased(backend, size)
    return SupervisedWorld(
        "processes", carried, lease.backend, roles, deadline=deadline, key=(subject, size), lease=lease
    )


def _attached(size: int, subject: Subject, backend: Backend, deadline: float) -> World:
    there = fleet()

    def roles(store: Path) -> list[RoleFactory]:
        from harness.worlds.processes.role import ProcessRole, RankPlace  # as above

        opened = there.store(store)
        places = (RankPlace(*there.place(rank, size)) for rank in range(size))
        return [partial(ProcessRole, rank, size, subject, opened, place) for rank, place in enumerate(places)]

    carried = [(rank,) for rank in range(size)]
    key = (subject, size, there)
    return SupervisedWorld(ATTACHED, carried, backend, roles, deadline=deadline, key=key, starts=there.start)


def ranks_in(kind: str, backend: Backend) -> int:
    """How many ranks a world of this kind has here at most."""
    if kind == ATTACHED:
        return fleet().size
    return backend.thread_ranks if kind == "threads" else backend.ranks


def _check(kind: str, size: int, backend: Backend) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown kind of world {kind!r}: expected one of {', '.join(KINDS)}")
    offered = ranks_in(kind, backend)
    if size < 1:
        raise ValueError(f"a world has at least 1 rank, got {size}")
    if size > offered and kind == ATTACHED:
        raise ValueError(f"the launcher has started {offered} ranks, got {size}: ask for fewer, or launch more")
    if size > offered:
        name = "thread_ranks" if kind == "threads" else "ranks"
        raise ValueError(
            f"backend {backend.name!r} offers at most {offered} ranks in a {kind} world, got {size}: "
            f"ask for fewer, or raise Backend.{name}"
        )
