"""The thread world: n ranks in one process, in lockstep, each with torch's idea of a process of its own.

See ``scheduler.py`` for how exactly one rank runs at a time, ``process_group.py`` for how they communicate. This
file alone borrows torch's thread-local world, which gives each thread its own table of process groups.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import device_mesh
from torch.testing._internal.distributed.multi_threaded_pg import (
    ThreadLocalWorld,
    _install_threaded_pg,
    _uninstall_threaded_pg,
)

from harness.collective_trace import recorder
from harness.process_group.methods import ENVIRONMENT, ranks_of
from harness.vendor.api import Backend, Claimed, Implementation
from harness.vendor.bounds import within_claims
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.worlds.base import Fate, Outcome, Program
from harness.worlds.group_teardown import Group, destroy_groups, left_of
from harness.worlds.rank import Rank, seed_like_a_new_process
from harness.worlds.threads.process_group import LockstepGroup
from harness.worlds.threads.rendezvous import RendezvousTable
from harness.worlds.threads.scheduler import Lockstep, ThreadPool
from harness.worlds.threads.store import LockstepStore

BACKEND = "lockstep"
_here = threading.local()
#: The threads of worlds that have ended, by how many, for the next world in this process: see ``ThreadPool``.
_idle: dict[int, ThreadPool] = {}

if not hasattr(ThreadLocalWorld, "comms"):
    # torch 2.11 forgot it, and needs it to destroy groups.
    ThreadLocalWorld.comms = []  # type: ignore[method-assign, assignment]


class ThreadRole:
    """What a worker process does when it carries all ranks of a thread world."""

    def __init__(self, size: int, subject: Subject, seed: int = 0) -> None:
        self._seed = seed
        backend = load_backend(subject.backend)
        os.environ.update(ENVIRONMENT)  # what it would change itself would count as a trace of a program
        if backend.device_type == "cpu":
            _stay_on_one_core()  # before there are threads: they inherit it
        self._ranks = ThreadRanks(size, load_implementation(subject.implementation), backend)
        gc.freeze()  # what is loaded by now stays: collections need not look at it again and again

    def run(self, program: Program, args: tuple[Any, ...], deadline: float | None = None) -> list[Outcome]:
        """Run the program; a case may say by its ``rank_order`` which seed decides the order of ranks."""
        seed = int(getattr(args[0], "rank_order", self._seed)) if args else self._seed
        return self._ranks.run(program, *args, seed=seed, deadline=deadline)

    def spoilt(self) -> str:
        """Nothing: ranks are born anew where it is needed."""
        return ""

    def leave(self) -> list[str]:
        """Destroy the process groups."""
        return self._ranks.close()


class ThreadRanks:
    """``size`` ranks as threads of this process. Their process group lives from the first run until ``close``.

    After a run in which a rank did not return, the next run begins with a fresh group.
    """

    def __init__(self, size: int, implementation: Implementation, backend: Backend) -> None:
        self._pool = _idle.pop(size) if size in _idle else ThreadPool(size)
        self._implementation, self._backend = within_claims(implementation, size), backend
        module = None if backend.device_type == "cpu" else getattr(torch, backend.device_type)
        _register(backend.device_type)
        # Else a mesh chooses another device for each rank of this process, and what starting the device changes in the
        # process would count as a trace of a program.
        torch.empty(1, device=backend.device_type)
        self._lockstep = Lockstep(self._pool, module)
        self._start_afresh()

    def run(self, program: Program, *args: Any, seed: int = 0, deadline: float | None = None) -> list[Outcome]:
        """Run ``program(rank, *args)`` on every rank; one outcome a rank, in rank order.

        ``seed`` decides the order in which ranks that can run do run; ``deadline`` is in seconds, see ``Lockstep.run``.
        """
        bodies = [functools.partial(self._live, number, program, args) for number in range(self._pool.size)]
        with _thread_isolation():
            outcomes = _with_unfinished(self._lockstep.run(bodies, seed, deadline), self._table)
        if self._has_lost_groups or any(outcome.fate is not Fate.RETURNED for outcome in outcomes):
            self._start_afresh()
        return outcomes

    def close(self) -> list[str]:
        """Destroy the process groups, and end the threads unless they are as they were; what is left, in words."""
        with _thread_isolation():
            ends = self._lockstep.run(
                [functools.partial(self._teardown_rank, number) for number in range(self._pool.size)]
            )
        self._start_afresh()
        for end in ends:
            if end.fate is not Fate.RETURNED:
                self._pool.close()
                raise RuntimeError(f"rank {end.rank} could not destroy its process groups: {end.error}")
        left = left_of([group for end in ends for group in end.value or ()])
        if left or self._pool.size in _idle or any(end.value is None for end in ends):
            self._pool.close()
        else:
            _idle[self._pool.size] = self._pool
        return left

    def _start_afresh(self) -> None:
        kind = self._backend.device_type
        self._table = RendezvousTable(self._lockstep, torch.get_device_module(kind), kind)
        self._store = LockstepStore(self._lockstep)
        self._ranks: dict[int, Rank] = {}
        self._has_lost_groups = False

    def _live(self, number: int, program: Program, args: tuple[Any, ...]) -> Any:
        seed_like_a_new_process(self._backend.device_type)
        with torch.autograd.set_multithreading_enabled(False):
            if number not in self._ranks:
                self._ranks[number] = self._init_rank(number)
            try:
                return program(self._ranks[number], *args)
            finally:
                self._has_lost_groups |= not dist.is_initialized()

    def _init_rank(self, number: int) -> Rank:
        _forget_groups()
        _here.table = self._table
        dist.init_process_group(BACKEND, store=self._store, rank=number, world_size=self._pool.size)
        device = torch.device(self._backend.device_type)
        claimed = cast("Claimed", self._implementation)
        return Rank(number, self._pool.size, device, claimed, self._backend, recorder.by_group)

    def _teardown_rank(self, number: int) -> list[Group] | None:
        """Weak references to what is buried; None on a thread that a program has changed for good."""
        groups: list[Group] = []
        if number in self._ranks:
            self._ranks[number].forget_groups()
            groups = destroy_groups()
        _forget_groups()
        return groups if _thread_state() == _UNTOUCHED else None


def _thread_state() -> list[Any]:
    """What a program may change on its thread for good; a thread that outlives a test must not carry it on."""
    modes = [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")]
    return [*modes, str(torch.get_default_device())]


_UNTOUCHED = [True, False, False, "cpu"]


def _stay_on_one_core() -> None:
    """Only one rank runs at a time: waking it where the last one ran saves waking another core each time."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


@contextmanager
def _thread_isolation() -> Iterator[None]:
    c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    device_mesh.get_backend = _backend_of_threads
    try:
        yield
    finally:
        device_mesh.get_backend = dist.get_backend
        _uninstall_threaded_pg()
        c10d._set_thread_isolation_mode(False)


def _backend_of_threads(group: dist.ProcessGroup | None = None) -> dist.Backend:
    """The name of the backend that meshes see: "threaded" makes a mesh differ from the same mesh of another thread.

    DTensor caches by mesh how tensors are redistributed, and for uneven parts that differs from rank to rank.
    """
    name = dist.get_backend(group)
    return dist.Backend("threaded" if name == BACKEND else name)


def _forget_groups() -> None:
    """Leave nothing of an earlier group, or of a failed run, on this thread."""
    ThreadLocalWorld._world.__dict__.clear()
    c10d._unregister_all_process_groups()


def _make_group(options: Any, _: Any) -> LockstepGroup:
    return LockstepGroup(_here.table, options.group_id, options.group_rank, ranks_of(options))


def _with_unfinished(outcomes: list[Outcome], table: RendezvousTable) -> list[Outcome]:
    """A collective that some ranks posted and others never joined is a mismatch, even if no rank waited for it."""
    if any(outcome.fate is not Fate.RETURNED for outcome in outcomes):
        return outcomes
    for meeting in table.unfinished():
        words = f"ended with a collective that its peers never joined: {meeting.words()}"
        for number in meeting.calls:
            rank = meeting.ranks[number]
            outcomes[rank] = replace(outcomes[rank], fate=Fate.MISMATCHED, value=None, error=words)
    return outcomes


def _register(device_type: str) -> None:
    """Make the group known to torch, for CPUs and this device."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu"])
    known = dist.Backend.backend_capability[BACKEND]
    if device_type not in known:
        known.append(device_type)
