"""The thread world: n ranks in one process, in lockstep, each with torch's idea of a process of its own.

See ``lockstep.py`` for how exactly one rank runs at a time, ``lockstep_group.py`` for how they communicate. This
file alone borrows torch's thread-local world, which gives each thread its own table of process groups.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.testing._internal.distributed.multi_threaded_pg import (
    ThreadLocalWorld,
    _install_threaded_pg,
    _uninstall_threaded_pg,
)

from harness.load import Subject, load_backend, load_implementation
from harness.rank import Rank
from harness.vendor import Backend, Implementation
from harness.worlds.base import Fate, Outcome, Program
from harness.worlds.lockstep import Crew, Lockstep
from harness.worlds.lockstep_group import LockstepGroup
from harness.worlds.lockstep_store import LockstepStore
from harness.worlds.meetings import Hall

BACKEND = "lockstep"
_here = threading.local()


class ThreadRole:
    """What a host process does when it carries all ranks of a thread world."""

    def __init__(self, size: int, subject: Subject, seed: int = 0) -> None:
        self._crew, self._seed = Crew(size), seed
        self._implementation = load_implementation(subject.implementation)
        self._backend = load_backend(subject.backend)

    def run(self, program: Program, args: tuple[Any, ...], deadline: float | None = None) -> list[Outcome]:
        """Run the program with a fresh process group on every rank."""
        return run_in_threads(
            program, *args, crew=self._crew, implementation=self._implementation, backend=self._backend,
            seed=self._seed, deadline=deadline,
        )  # fmt: skip

    def leave(self) -> None:
        """End the threads."""
        self._crew.close()


def run_in_threads(
    program: Program,
    *args: Any,
    crew: Crew,
    implementation: Implementation,
    backend: Backend,
    seed: int = 0,
    deadline: float | None = None,
) -> list[Outcome]:
    """Run ``program(rank, *args)`` on a crew's threads, in this process; one outcome a rank, in rank order.

    ``seed`` decides the order in which ranks that can run do run; ``deadline`` is in seconds, see ``Lockstep.run``.
    """
    device_module = None if backend.device_type == "cpu" else getattr(torch, backend.device_type)
    lockstep = Lockstep(crew, seed, device_module)
    hall, store = Hall(lockstep), LockstepStore(lockstep)

    size = crew.size

    def body(number: int) -> Callable[[], Any]:
        def live() -> Any:
            with _process_of_its_own(hall, store, number, size):
                device = torch.device(backend.device_type)
                return program(Rank(number, size, device, implementation, backend), *args)

        return live

    with _thread_isolation():
        outcomes = lockstep.run([body(number) for number in range(size)], deadline)
    return _with_unfinished(outcomes, hall)


@contextmanager
def _thread_isolation() -> Iterator[None]:
    c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    try:
        yield
    finally:
        _uninstall_threaded_pg()
        c10d._set_thread_isolation_mode(False)


@contextmanager
def _process_of_its_own(hall: Hall, store: LockstepStore, number: int, size: int) -> Iterator[None]:
    """What a rank's thread has to itself: its process groups, one-threaded autograd, a seed like a new process."""
    torch.manual_seed(torch.default_generator.initial_seed())
    with torch.autograd.set_multithreading_enabled(False):
        _here.hall = hall
        try:
            dist.init_process_group(BACKEND, store=store, rank=number, world_size=size)
            yield
            dist.destroy_process_group()
        finally:
            _forget_groups()


def _forget_groups() -> None:
    """Leave nothing of a failed run to the next one on this thread."""
    ThreadLocalWorld._world.__dict__.clear()
    c10d._unregister_all_process_groups()


def _make_group(options: Any, _: Any) -> LockstepGroup:
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    return LockstepGroup(_here.hall, options.group_id, options.group_rank, ranks)


def _with_unfinished(outcomes: list[Outcome], hall: Hall) -> list[Outcome]:
    """A collective that some ranks posted and others never joined is a mismatch, even if nobody waited for it."""
    if any(outcome.fate is not Fate.RETURNED for outcome in outcomes):
        return outcomes
    for meeting in hall.unfinished():
        words = f"ended with a collective that its peers never joined: {meeting.words()}"
        for number in meeting.calls:
            rank = meeting.ranks[number]
            outcomes[rank] = replace(outcomes[rank], fate=Fate.MISMATCHED, value=None, error=words)
    return outcomes


if BACKEND.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])
