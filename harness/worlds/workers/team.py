"""The worker processes of one world, their private directory, and the promise that none of them is left behind."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from harness.vendor.api import Backend
from harness.worlds.processes import flight_recorder
from harness.worlds.system.process_tree import end_orphans
from harness.worlds.system.run_directory import folder
from harness.worlds.workers.handle import WorkerHandle, wait_for_files

#: How long hung workers may take to show their stacks, and then their last collectives.
_STACK_SECONDS = 5.0
_FLIGHT_SECONDS = 3.0

#: What starts the worker of some ranks, by a method, which keeps its files in a directory if it is on this machine.
Starts = Callable[[tuple[int, ...], Backend, str, Path], WorkerHandle]

_alive: weakref.WeakSet[Team] = weakref.WeakSet()


class Team:
    """Workers that work together: each carries some ranks, all are watched at once, all end together."""

    def __init__(
        self, ranks: Sequence[tuple[int, ...]], backend: Backend, method: str, starts: Starts = WorkerHandle
    ) -> None:
        """``starts`` starts each worker, where its ranks are to be."""
        self.directory = Path(tempfile.mkdtemp(prefix="world-", dir=folder()))
        self.workers: list[WorkerHandle] = []
        #: The number of the run that is on, or was last; and what a program has spoilt for the next one, in words.
        self.runs = 0
        self.spoilt = ""
        self._owner = os.getpid()
        _alive.add(self)
        try:
            for number, carried in enumerate(ranks):
                self.workers.append(starts(carried, backend, method, self.directory / f"worker-{number}"))
        except BaseException:
            self.end()
            raise

    @property
    def has_role(self) -> bool:
        """Whether any worker has taken a role and not given it up."""
        return any(worker.is_ready for worker in self.workers)

    def new_store(self) -> Path:
        """A new path where the ranks of the next run can meet."""
        self.runs += 1
        for worker in self.workers:
            worker.forget()
        return self.directory / f"store-{self.runs}"

    def is_whole(self) -> bool:
        """Whether the directory is still there with what workers keep in it: a program can remove anything."""
        return all(worker.has_files() for worker in self.workers)

    def messages(self, until: Callable[[], float], wake: int | None = None) -> Iterator[tuple[WorkerHandle, list[Any]]]:
        """What workers say or how they die, as it happens.

        Ends at ``until()``, or when ``wake`` is readable, or when there is no worker left that could say something.
        What was sent until then is still read.
        """
        ready: list[Any] = []
        while wake not in ready:
            speakers = [worker for worker in self.workers if worker.has_message()]
            if not speakers:
                owners = {thing: worker for worker in self.workers for thing in worker.waitables()}
                if not owners:
                    return
                heard = [*owners, *([] if wake is None else [wake])]
                # If this process was stopped and wakes after the deadline, what came in time is still there.
                ready = wait(heard, max(0.0, until() - time.monotonic())) or wait(heard, 0)
                if not ready:
                    return
                speakers = list(dict.fromkeys(owners[thing] for thing in ready if thing in owners))
            for worker in speakers:
                for message in worker.receive():
                    yield worker, message

    def disturbance(self) -> str:
        """In words, what from outside has ended or stopped workers; "" if nothing did."""
        return "; ".join(dict.fromkeys(filter(None, (worker.disturbance() for worker in self.workers))))

    def show_stacks(self, workers: Sequence[WorkerHandle]) -> dict[WorkerHandle, str]:
        """The stacks of ``workers``, as far as they show them in time."""
        for worker in workers:
            worker.ask_for_stacks()
        wait_for_files(lambda: all(worker.has_shown_stacks() for worker in workers), _STACK_SECONDS)
        return {worker: worker.stacks() for worker in workers}

    def show_flights(self) -> dict[int, flight_recorder.Flight]:
        """The last collectives of each rank whose worker tells them in time. Ask for stacks before."""
        asked = [worker for worker in self.workers if worker.ask_for_flight()]
        wait_for_files(lambda: all(worker.has_shown_flight() for worker in asked), _FLIGHT_SECONDS)
        shown = {worker.ranks[0]: worker.shown_flight() for worker in asked}
        return {rank: found for rank, found in shown.items() if found is not None}

    def kill(self) -> None:
        """Kill all workers and whatever they started; their files stay until ``end``."""
        if os.getpid() == self._owner:  # a forked copy of the controller must not kill its parent's ranks
            for worker in self.workers:
                worker.kill()

    def end(self) -> None:
        """Kill what still lives and leave nothing behind."""
        self.kill()
        if os.getpid() == self._owner:
            for worker in self.workers:
                worker.close()
            end_orphans(worker.pid for team in _alive for worker in team.workers if not worker.is_dead)
            shutil.rmtree(self.directory, ignore_errors=True)
        _alive.discard(self)


@atexit.register
def end_all() -> None:
    """End every team there is. Registered after multiprocessing's own handler, so it runs before it."""
    for team in list(_alive):
        team.end()
