"""Inside a worker process: it takes orders from the controller's supervisor and answers in plain data.

A worker carries one rank (process world) or all of them (thread world). What it carries is its *role*. Orders come as
pickles, since the controller is ours; answers go back as ``wire`` messages, since subjects' code runs here::

    controller                          worker
    ("role", factory)            ──▶    builds the role      ──▶  ["ready"]
    ("run", program, …)          ──▶    runs it              ──▶  ["done", [outcome, …], what it has spoilt]
    ("release",)                 ──▶    leaves the role      ──▶  ["released", error, what leaked]
    ("leave",)                   ──▶    leaves, then exits   ──▶  ["left", error]  and exit code 0
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import multiprocessing.forkserver
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic  # by its name: a program may replace ``time.monotonic``
from typing import Any, Protocol

import torch

from harness.vendor.bounds import asked
from harness.worlds import wire
from harness.worlds.base import Fate, Outcome, Program, error_summary, fate_of, format_error
from harness.worlds.devices import SharedFile
from harness.worlds.processes import flight_recorder
from harness.worlds.system.process_state import changes, process_state
from harness.worlds.system.process_tree import adopt_orphans
from harness.worlds.system.running_mark import mark_running, open_mark
from harness.worlds.workers.device_check import Check, faulted, load_check

LOG, STACKS, MARK = "log", "stacks", "mark"


class Role(Protocol):
    """What a worker does: it runs programs on the ranks it carries."""

    def run(self, program: Program, args: tuple[Any, ...], deadline: float | None) -> list[Outcome]:
        """Run ``program(rank, *args)`` on the ranks of this worker; one outcome each, and never an exception."""
        ...

    def spoilt(self) -> str:
        """In words, what a program has done to this role, so that it cannot run another; "" if nothing."""
        ...

    def leave(self) -> list[str]:
        """Tear down what the role set up, without waiting for other workers; in words, what is left all the same."""
        ...


RoleFactory = Callable[[], Role]


@dataclass(frozen=True)
class Setup:
    """What a worker needs before it has a role. ``directory`` is its own, and holds its log and stacks.

    ``files`` stay open until the process ends.
    """

    directory: str
    environment: dict[str, str]
    imports: tuple[str, ...]
    check: str
    device_type: str
    forked: bool
    files: tuple[SharedFile, ...]


def main(connection: Connection, setup: Setup) -> None:
    """The life of a worker process. Returns when it is asked to leave, and then the process ends with code 0."""
    _stand_alone(setup)
    hazard = str(getattr(_preload(), "HAZARD", "")) if setup.forked else ""
    if hazard:
        _send(connection, ["unsafe", hazard])
        return
    try:
        for name in setup.imports:
            importlib.import_module(name)
        check = load_check(setup.check)
    except BaseException as error:
        _send(connection, ["failed", error_summary(error), format_error(error)])
        return
    # Also where that changes nothing: torch makes a forked process its thread pool in the first call, and the threads
    # of a device's backward would make it all at once, which can fail ("Invalid thread pool!").
    torch.set_num_threads(1 if setup.device_type == "cpu" else torch.get_num_threads())
    _Worker(connection, check).serve()


class _Worker:
    """Obeys one order after the other."""

    def __init__(self, connection: Connection, check: Check) -> None:
        self._connection = connection
        self._check = check
        self._role: Role | None = None
        self._pid = os.getpid()
        self._state = process_state()

    def serve(self) -> None:
        while True:
            try:
                order, *rest = pickle.loads(self._connection.recv_bytes())
            except EOFError:  # the controller is gone
                os._exit(0)
            if order == "leave":
                self._exit()
                return
            if order == "role":
                self._take_role(*rest)
            elif order == "run":
                self._run(*rest)
            else:
                self._release()

    def _take_role(self, factory: RoleFactory) -> None:
        torch.default_generator.manual_seed(0)  # whatever this process or the fork server has done before
        try:
            self._role = factory()
        except BaseException as error:
            _send(self._connection, ["failed", error_summary(error), format_error(error)])
            return
        self._state = process_state()
        _send(self._connection, ["ready", str(getattr(_preload(), "COLD", ""))])

    def _run(self, pickled: bytes, ranks: list[int], deadline: float | None) -> None:
        assert self._role is not None
        try:
            program, args = pickle.loads(pickled)
        except BaseException as error:  # the program's module may fail to import here
            outcomes = [raised(number, error) for number in ranks]
        else:
            mark_running(ranks[0] if len(ranks) == 1 else None)
            self._check()  # what was before is not this program's
            asked()  # nor is what was asked for then
            outcomes = self._role.run(program, args, deadline)
            if os.getpid() != self._pid:  # a copy that the program forked: it must not answer
                os._exit(0)
            features = asked()
            outcomes = [replace(each, asked=features) for each in faulted(outcomes, self._check())]
            mark_running(None)
        _flush()
        _send_outcomes(self._connection, outcomes, self._role.spoilt())

    def _release(self) -> None:
        error, left = self._leave()
        try:
            changed = [*left, *changes(self._state, process_state())]
        except Exception as problem:  # such a process is not used again; it has done nothing wrong
            changed = [f"state, which cannot be read ({error_summary(problem)})"]
        _send(self._connection, ["released", error, changed])

    def _exit(self) -> None:
        _send(self._connection, ["left", self._leave()[0]])
        atexit._run_exitfuncs()  # a forked child would skip them, and with them a subject's aborts
        _flush()

    def _leave(self) -> tuple[str, list[str]]:
        role, self._role = self._role, None
        try:
            return "", role.leave() if role is not None else []
        except BaseException as error:
            return format_error(error), []


def attempt(number: int, call: Callable[[], Any]) -> Outcome:
    """Call, and say what became of it, whatever is raised: skips and ``sys.exit`` are no way out of a verdict."""
    try:
        value = call()
    except BaseException as error:
        return raised(number, error)
    return Outcome(number, Fate.RETURNED, value, at=monotonic())


def raised(number: int, error: BaseException) -> Outcome:
    """The outcome of a rank that raised ``error``."""
    return Outcome(number, fate_of(error), error=error_summary(error), traceback=format_error(error), at=monotonic())


def _preload() -> Any:
    """The module that the fork server imported before this process was forked from it, or None."""
    return sys.modules.get("harness.worlds.preload")


def _send(connection: Connection, message: list[Any]) -> None:
    connection.send_bytes(wire.encode(message))


def _send_outcomes(connection: Connection, outcomes: list[Outcome], spoilt: str, limit: int = wire.LIMIT) -> None:
    """Send all; where that is too much or no plain data, only values that are plain data and within their share."""
    try:
        message = wire.encode(["done", [_as_tree(outcome) for outcome in outcomes], spoilt], limit)
    except (TypeError, ValueError):
        outcomes = [_sendable(outcome, limit // len(outcomes)) for outcome in outcomes]
        message = wire.encode(["done", [_as_tree(outcome) for outcome in outcomes], spoilt], 2 * limit)
    connection.send_bytes(message)


def _as_tree(outcome: Outcome) -> dict[str, Any]:
    fields = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__}
    return {**fields, "fate": outcome.fate.value}


def _sendable(outcome: Outcome, limit: int) -> Outcome:
    """The outcome; without its value, if that is no plain data or has more than ``limit`` bytes."""
    try:
        wire.encode(outcome.value, limit)
    except (TypeError, ValueError) as error:
        return replace(outcome, fate=Fate.UNSENDABLE, value=None, error=str(error))
    return outcome


# Making the process a good citizen.


def _stand_alone(setup: Setup) -> None:
    """Own process group, own files, dies with its parent, shows its stacks when asked."""
    os.setsid()  # so that the supervisor can kill this process together with whatever it starts
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a controller in the background may ignore it
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.environ.clear()
    os.environ.update(setup.environment)
    directory = Path(setup.directory)
    _redirect(directory / LOG)
    stacks = open(directory / STACKS, "a")  # noqa: SIM115  stays open as long as the process lives
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    open_mark(directory / MARK)
    flight_recorder.keep_in(directory)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    # The fork server lives as long as a process holds this pipe open, which only the controller shall do.
    server: Any = getattr(multiprocessing.forkserver, "_forkserver", None)
    held = getattr(server, "_forkserver_alive_fd", None)
    if held is not None:
        os.close(held)
        server._forkserver_alive_fd = None


def _redirect(log: Path) -> None:
    with open(log, "ab") as file, open(os.devnull, "rb") as nothing:
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source.fileno(), target)
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
