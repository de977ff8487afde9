"""An agent: the process that a launcher has started for one rank. It starts that rank's worker processes when asked to.

It obeys the controller and passes on what workers say, without looking into it::

    controller                        agent                         worker process
    ["start", 4, 1, …]           ──▶  starts worker 4           ──▶   main()
    ["order", 4, a pickle]       ──▶                          ──▶   obeys, see worker.py
    ["said", 4, its answer]      ◀──                          ◀──   answers
    ["stacks", 4, 17]            ──▶  has worker 4 show them
    ["answer", 17, "Thread …"]   ◀──
    ["end", 4]                   ──▶  kills what is left of worker 4

A new worker after each failure is a new number. When the controller is gone, so are the workers, and then the agent.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from harness.vendor.api import Backend
from harness.worlds import wire
from harness.worlds.base import Disturbed
from harness.worlds.line import Line
from harness.worlds.processes import flight_recorder
from harness.worlds.system.process_tree import end_orphans
from harness.worlds.system.run_directory import folder
from harness.worlds.workers.fork_server import preload_programs, start_ahead
from harness.worlds.workers.handle import WorkerHandle, wait_for_files

#: Less than the controller waits for the same, see ``team.py``.
_STACK_SECONDS, _FLIGHT_SECONDS = 4.0, 2.0


class _Relayed(WorkerHandle):
    """A worker whose answers are passed on to the controller."""

    def _answer(self, message: bytes) -> list[Any]:
        return ["said", message]


class Agent:
    """Serves the controller at the other end of ``line``."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._is_over = False
        self._workers: dict[int, WorkerHandle] = {}

    def serve(self) -> bool:
        """Obey until the controller says goodbye; False if it is gone without. In any case no worker is left behind."""
        try:
            while self._obey(self._orders()):
                if self._is_over:
                    return False
                self._pass_on()
            return True
        except (OSError, ValueError):  # it takes nothing any more, or a message without the run's seal has come
            return False
        finally:
            for number in list(self._workers):
                self._end(number)

    def _orders(self) -> list[Any]:
        """Wait for the controller or a worker; the orders that have come from the controller."""
        waitables = [thing for worker in self._workers.values() for thing in worker.waitables()]
        if self._line.fileno() in wait([self._line.fileno(), *waitables]):
            self._is_over = not self._line.receive()
        return [wire.decode(message) for message in iter(self._line.next, None)]

    def _obey(self, orders: Sequence[Any]) -> bool:
        for verb, *rest in orders:
            if verb == "goodbye":
                return False
            if verb in _ASKED:
                *about, number = rest
                self._send("answer", number, _ASKED[verb](self, *about))
            elif verb in _TOLD:
                _TOLD[verb](self, *rest)
            else:
                number, *order = rest
                if number in self._workers:
                    _OF_A_WORKER[verb](self._workers[number], *order)
        return True

    def _send(self, *words: Any) -> None:
        self._line.send(wire.encode(list(words), 3 * wire.LIMIT))

    def _pass_on(self) -> None:
        for number, worker in self._workers.items():
            if not worker.is_dead and wait(worker.waitables(), 0):
                for tag, said in worker.receive():
                    if tag == "said":
                        self._send("said", number, said)
                    else:
                        self._send("died", number, said, worker.code, worker.stacks(), worker.disturbance())

    # Commands.

    def _ahead(self, method: str, about: tuple[Any, ...], programs: list[str]) -> None:
        preload_programs(programs)
        with suppress(OSError):  # it will be said when a worker is to be started
            start_ahead(_backend(method, *about))

    def _start(self, number: int, rank: int, method: str, about: tuple[Any, ...], programs: list[str]) -> None:
        preload_programs(programs)
        backend = _backend(method, *about)
        try:
            directory = Path(tempfile.mkdtemp(prefix="world-", dir=folder()))  # a program may remove any other
            self._workers[number] = _Relayed((rank,), backend, method, directory / "worker")
        except Disturbed as error:
            self._send("died", number, str(error), None, "", str(error))
        except OSError as error:
            self._send("died", number, f"cannot start a process: {type(error).__name__}: {error}", None, "", "")

    def _end(self, number: int) -> None:
        worker = self._workers.pop(number, None)
        if worker is not None:
            worker.kill()
            worker.close()
            shutil.rmtree(worker.directory.parent, ignore_errors=True)
            end_orphans(other.pid for other in self._workers.values() if not other.is_dead)

    # Requests, which have an answer.

    def _clock(self) -> float:
        return time.monotonic()

    def _sees(self, path: str) -> bool:
        return os.path.isdir(path)

    def _files(self, number: int) -> bool:
        return number in self._workers and self._workers[number].has_files()

    def _log(self, number: int) -> str:
        return self._workers[number].log_tail() if number in self._workers else ""

    def _disturbance(self, number: int) -> str:
        return self._workers[number].disturbance() if number in self._workers else ""

    def _stacks(self, number: int) -> str:
        worker = self._workers.get(number)
        if worker is None:
            return ""
        worker.ask_for_stacks()
        wait_for_files(worker.has_shown_stacks, _STACK_SECONDS)
        return worker.stacks()

    def _flight(self, number: int) -> bytes:
        worker = self._workers.get(number)
        if worker is None or not worker.ask_for_flight():
            return b""
        wait_for_files(worker.has_shown_flight, _FLIGHT_SECONDS)
        return flight_recorder.answered(worker.directory)


def _backend(method: str, device_type: str, imports: tuple[str, ...], environment: dict[str, str]) -> Backend:
    """As much of the backend as a worker process needs to be started."""
    return Backend("", device_type, imports=imports, environment=environment, start_method=method)


_TOLD: dict[str, Any] = {"ahead": Agent._ahead, "start": Agent._start, "end": Agent._end}
_OF_A_WORKER: dict[str, Any] = {
    "order": WorkerHandle.forward,
    "forget": WorkerHandle.forget,
    "kill": WorkerHandle.kill,
}
_ASKED: dict[str, Any] = {
    "clock": Agent._clock,
    "sees": Agent._sees,
    "files": Agent._files,
    "log": Agent._log,
    "disturbance": Agent._disturbance,
    "stacks": Agent._stacks,
    "flight": Agent._flight,
}
