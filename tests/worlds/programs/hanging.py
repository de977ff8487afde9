"""The deadline of a run that hangs passes when its ranks are seen where they hang, and not by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import pytest

from harness.worlds.base import World
from harness.worlds.system.disturbances import is_stopped
from harness.worlds.workers import attribution, team
from harness.worlds.workers.handle import WorkerHandle, wait_for_files
from harness.worlds.workers.supervise import Watch
from tests.patience import GUARD


@contextmanager
def deadline_when(is_time: Callable[[], bool]) -> Iterator[None]:
    """The deadline of a run in the block has passed as soon as ``is_time()`` says so."""

    def waits(things: Sequence[Any], seconds: float) -> list[Any]:
        until = time.monotonic() + seconds
        while not (ready := wait(things, 0.02)) and time.monotonic() < until and not is_time():
            pass
        return ready

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "wait", waits)
        yield


@contextmanager
def deadline_when_all_hang(world: World, hangs: Sequence[str]) -> Iterator[None]:
    """The same for the next run of a world with a process for each rank; ``hangs`` says where each rank will hang.

    That is a collective, by its flight; or words of its place, by its stacks; or "stopped", or "" if it returns.
    """
    answered: set[int] = set()
    results = Watch._results

    def hear(self: Watch, worker: WorkerHandle, *rest: Any) -> None:
        answered.update(worker.ranks)
        results(self, worker, *rest)

    def all_hang() -> bool:
        running = vars(world)["_team"]
        return all(
            is_at(worker, where) if where else rank in answered
            for rank, (worker, where) in enumerate(zip(running.workers, hangs, strict=True))
        )

    with pytest.MonkeyPatch.context() as patch, deadline_when(all_hang):
        patch.setattr(Watch, "_results", hear)
        yield


def is_at(worker: WorkerHandle, where: str) -> bool:
    """Whether a rank hangs there now."""
    if where == "stopped":
        return is_stopped(worker.pid)
    if " " in where:
        worker.ask_for_stacks()
        wait_for_files(worker.has_shown_stacks, GUARD)
        place = attribution.place_in(worker.stacks())
        worker.forget()  # so that the next stacks are new ones
        return where in place
    if not worker.ask_for_flight():
        return False
    wait_for_files(worker.has_shown_flight, GUARD)
    flight = worker.shown_flight()
    return flight is not None and any(call.operation == where and not call.is_done for call in flight.calls)
