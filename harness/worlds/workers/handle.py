"""The controller's end of one worker process: start it, talk to it, see it die, have its stacks, kill it."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from harness.vendor.api import Backend
from harness.worlds import wire
from harness.worlds.devices import SharedFile
from harness.worlds.line import Line
from harness.worlds.processes import flight_recorder
from harness.worlds.system.disturbances import death_of_server, fork_server, is_orphaned, is_stopped
from harness.worlds.system.process_tree import below, kill_all
from harness.worlds.system.running_mark import read_mark
from harness.worlds.workers import worker
from harness.worlds.workers.start import start

#: What is wrong with a worker whose connection holds bytes that no worker sends: a program wrote to the descriptor.
GARBLED = "wrote over its connection to the controller"
_TAIL = 4096
_STACKS = 256 * 1024
#: The exit code that multiprocessing makes up for a process whose fork server has died.
_UNKNOWN = 255
#: How long a process may take from closing its connection to its end: a large torch takes its time on a busy machine.
END_SECONDS = 5.0


class WorkerHandle:
    """One worker process that carries ``ranks``. ``directory`` is its own and holds its log and stacks.

    It keeps ``files`` open for as long as it lives.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        backend: Backend,
        method: str,
        directory: Path,
        files: Sequence[SharedFile] = (),
    ) -> None:
        self.ranks = ranks
        self.directory = directory
        self.is_ready = False
        #: What is to be added to a time of its machine's monotonic clock to have one of ours.
        self.clock = 0.0
        self.code: int | None = None
        self.is_dead = False
        directory.mkdir(mode=0o700)
        self._log_start = self._stacks_start = 0
        self._process, connection = start(ranks, backend, method, directory, files)
        self._line: Line | None = Line(connection, 2 * wire.LIMIT)
        self._pidfd = _pidfd(self._process.pid, method)
        self._end: int = self._process.sentinel if self._pidfd is None else self._pidfd
        self._server = fork_server() if method == "forkserver" else None
        self._is_orphan = False
        self.pid: int = self._process.pid

    def name(self) -> str:
        """The ranks that the process carries, in words."""
        first, last = self.ranks[0], self.ranks[-1]
        return f"rank {first}" if first == last else f"the process of ranks {first} to {last}"

    def is_idle(self) -> bool:
        """Whether the process lives and has nothing to say."""
        return not self.is_dead and not wait(self.waitables(), 0)

    def has_message(self) -> bool:
        """Whether there is something that was heard and not taken yet; then nothing need become readable."""
        return False

    def waitables(self) -> list[Any]:
        """What becomes readable when this worker says something or dies."""
        if self.is_dead:
            return []
        talk = [] if self._line is None else [self._line]
        return [*talk, self._end]

    def send(self, *order: Any) -> None:
        """Give an order. A worker that is gone or takes none is noticed later, by ``receive`` or a deadline."""
        self.forward(pickle.dumps(order))

    def forward(self, order: bytes) -> None:
        """Give an order that is pickled already, see ``send``."""
        if self._line is not None:
            try:
                self._line.send(order)
            except BlockingIOError:  # half an order was sent: nothing sensible can follow it
                self.hang_up()
            except OSError:
                pass  # what the worker sent before it died can still be read

    def receive(self) -> Iterator[list[Any]]:
        """What the worker has sent since; then, if it is gone or cannot be understood, a last ``["died", words]``."""
        is_over = not self.is_dead and self._exit_code() is not None  # first, so that all it has sent is read below
        has_ended = self._line is not None and not self._line.receive()
        try:
            while self._line is not None and (message := self._line.next()) is not None:
                yield self._answer(message)
        except ValueError as error:
            self.hang_up()
            yield ["died", f"{GARBLED}: {error}"]
            return
        if has_ended:  # and with it the process: that closes its files just before its end is reported
            self.hang_up()
            wait([self._end], END_SECONDS)
        if has_ended or is_over:
            self.is_dead = True
            self._exit_code()
            yield ["died", ""]

    def _answer(self, message: bytes) -> list[Any]:
        answer: list[Any] = wire.decode(message)
        return answer

    def _exit_code(self) -> int | None:
        """The exit code once the process has ended; first of all, whether the fork server could report it."""
        if self.code is None:
            is_orphan = self._server is not None and is_orphaned(self._process.sentinel)
            self.code = self._process.exitcode
            self._is_orphan = is_orphan and self.code == _UNKNOWN
        return self.code

    def disturbance(self) -> str:
        """In words, what from outside has ended or stopped the process; "" if nothing did."""
        self._exit_code()
        if self._is_orphan:
            assert self._server is not None
            return death_of_server(self._server)
        if not self.is_dead and is_stopped(self.pid):
            return f"a signal stopped {self.name()}"
        return ""

    def hang_up(self) -> None:
        """Hear no more of this worker, except that it ends."""
        if self._line is not None:
            self._line.close()
            self._line = None

    # Evidence.

    def forget(self) -> None:
        """From here on, log and stacks show only what is written after this moment."""
        self._log_start, self._stacks_start = _size(self.directory / worker.LOG), _size(self.directory / worker.STACKS)

    def has_files(self) -> bool:
        """Whether what the worker writes can be read."""
        return all((self.directory / name).is_file() for name in (worker.LOG, worker.STACKS, worker.MARK))

    def log_tail(self) -> str:
        """The last 4 KiB that the worker and its children wrote to stdout and stderr."""
        return _read(self.directory / worker.LOG, self._log_start, _TAIL)

    def stacks(self) -> str:
        """All stacks that the worker has shown, by request or when a fatal signal hit it."""
        return _read(self.directory / worker.STACKS, self._stacks_start, _STACKS)

    def ask_for_stacks(self) -> None:
        """Make the worker write the stacks of all its threads, whatever it is doing."""
        if not self.is_dead:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def has_shown_stacks(self) -> bool:
        """Whether the dump is complete: it ends with the main thread, whose outermost frame is a module."""
        return self._exit_code() is not None or self.stacks().endswith(("in <module>\n", "  ...\n"))

    def ask_for_flight(self) -> bool:
        """Make the worker write down its last collectives. False if it is dead or keeps no record of them."""
        return not self.is_dead and flight_recorder.ask(self.directory)

    def has_shown_flight(self) -> bool:
        """Whether it has written them down."""
        return flight_recorder.has_answered(self.directory)

    def shown_flight(self) -> flight_recorder.Flight | None:
        """What it has written down; None if that is not to be understood."""
        return flight_recorder.read(self.directory)

    def running_rank(self) -> int | None:
        """Of several ranks in the worker, the one that had the run token last, if it was written down."""
        return self.ranks[0] if len(self.ranks) == 1 else read_mark(self.directory / worker.MARK)

    # The end.

    def kill(self) -> None:
        """Kill the worker with all that it started. Returns at once; ``close`` waits."""
        if not self.is_dead:
            kill_all(below(self.pid))  # those that are in no group of ours any more
        with suppress(PermissionError):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                if not self.is_dead:  # it has only just started, and has no group of its own yet
                    with suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of a process that was killed or has left, and free what it held here."""
        self.hang_up()
        with suppress(ValueError):  # closed before
            self._process.join(10)
        self.is_dead = True
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        with suppress(ValueError):
            self._process.close()


def _pidfd(pid: int, method: str) -> int | None:
    """A spawned process' own sentinel stays silent while a forked grandchild lives; this one does not."""
    if method == "forkserver" or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int, limit: int) -> str:
    """The last ``limit`` bytes of a file after ``start``, as text."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


def wait_for_files(are_there: Callable[[], bool], seconds: float) -> None:
    """Wait until workers have written what they were asked for, or ``seconds`` at most."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not are_there():
        time.sleep(0.002)  # a file cannot be waited for
