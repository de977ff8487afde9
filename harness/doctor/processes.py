"""Asking in processes that may die or hang: one without a process group, or the ranks of a world.

ask(world, …)   every rank answers                    ─▶  ["found", "1 × npu"]
                a rank dies, hangs, or cannot start   ─▶  ["wrong", "rank 0 crashed: killed by SIGSEGV"]
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from harness.doctor import device
from harness.doctor.checks import Answer, Check, Finding, NotTried, Probe, Status, answer, of_ranks
from harness.vendor.api import Backend
from harness.vendor.load import load_backend
from harness.worlds.base import Disturbed, Fate, NotRun, Outcome, Program, World, first_cause
from harness.worlds.workers.attribution import place_in
from harness.worlds.workers.supervised_world import SupervisedWorld
from harness.worlds.workers.worker import attempt


class Single:
    """The role of a process without a process group."""

    def run(self, program: Program, args: tuple[Any, ...], deadline: float | None) -> list[Outcome]:
        """Run ``program(*args)`` here; the supervisor keeps the deadline."""
        return [attempt(0, lambda: program(*args))]

    def spoilt(self) -> str:
        """Nothing that a program can spoil for the next one."""
        return ""

    def leave(self) -> list[str]:
        """There is nothing to tear down."""
        return []


def one_process(backend: Backend) -> World:
    """A process with the plugins of the backend and without a process group; it is gone when the world is closed."""
    return SupervisedWorld("process", [(0,)], replace(backend, persistent=False), lambda _: [Single])


def on_device(name: str, spec: str) -> Answer:
    """The program of one process: one of ``device.PROBES``, of the backend that ``spec`` names."""
    backend = load_backend(spec)  # which may be what makes the device known
    probe, here = device.PROBES[name], device.Here.of(backend.device_type, backend.process_group)
    return answer(lambda: _tried(probe, here))


def _tried(probe: Probe, here: device.Here) -> str | None:
    if here.module is None and probe is not device.device_module:
        raise NotTried(f"there is no module torch.{here.device_type} (device-module)")
    if probe.needs_device and here.device_type != "cpu" and not here.module.device_count():
        raise NotTried(f"no {here.device_type} device here (devices)")
    return probe.ask(here)


def ask(world: World, check: Check, program: Program, args: tuple[Any, ...], limit: float) -> Finding:
    """What the ranks of ``world`` answer to ``program`` within ``limit`` seconds, their start included."""
    clock = threading.Timer(limit, world.expire, [f"{limit:g} s had passed"])
    clock.daemon = True
    clock.start()
    try:
        outcomes = world.run(program, *args, deadline=2 * limit)
    except NotRun as error:
        return Finding(check, Status.WRONG, "; ".join(str(error).splitlines()[:2]))
    except Disturbed as error:
        return Finding(check, Status.NOT_TRIED, str(error))
    finally:
        clock.cancel()
    if (first := first_cause(outcomes)) is not None:
        return Finding(check, Status.WRONG, _end(first))
    return of_ranks(check, [outcome.value for outcome in outcomes])


def _end(outcome: Outcome) -> str:
    """How a rank ended; of one that is gone also where it was, and the last line that it wrote."""
    words = f"rank {outcome.rank} {outcome.fate}: {outcome.error}"
    if outcome.fate not in (Fate.CRASHED, Fate.EXITED):
        return words
    place = place_in(outcome.traceback) if outcome.traceback else ""
    return "; ".join(filter(None, (words, place, outcome.log.rstrip().rpartition("\n")[2])))
