"""The attached world: ranks that a launcher has started already, on one machine or many, are asked to carry workers.

    rank 0's process    the controller: runs pytest, and has rank 0 in a worker process of its own, as in any world
    other processes     agents, one a rank (agent.py), each at the end of a sealed line (sealed_line.py)

How they find each other is in ``fleet.py``.

A world of 2 out of 4 ranks is a worker here and one at the agent of rank 1, watched by the supervisor of every world.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

from harness.vendor.api import Backend
from harness.worlds import wire
from harness.worlds.attached.sealed_line import SealedLine
from harness.worlds.processes import flight_recorder
from harness.worlds.workers.fork_server import programs
from harness.worlds.workers.handle import GARBLED, WorkerHandle

#: How long an agent may take to say that it is there. It may be starting its fork server for the world before.
_PATIENCE = 60.0
#: How long it may take to say anything else, and to leave.
_SOON = 5.0


class Member:
    """The controller's end of the line to the agent of ``rank``; ``local`` is its rank among those of its ``node``."""

    def __init__(self, line: SealedLine, rank: int, node: str, local: int | None) -> None:
        self.rank, self.node, self.local = rank, node, local
        self.clock = 0.0
        #: Why it is gone, once it is.
        self.lost = ""
        self._line = line
        self._workers: dict[int, AttachedHandle] = {}
        self._answers: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    def fileno(self) -> int:
        """What becomes readable when the agent says something."""
        return self._line.fileno()

    def send(self, *words: Any) -> None:
        """Tell the agent something. If it takes nothing any more, it is lost."""
        if not self.lost:
            try:
                self._line.send(wire.encode(list(words), 3 * wire.LIMIT))
            except ConnectionError:
                self.lose("its connection has ended")
            except OSError as error:
                self.lose(f"it takes no orders: {error}")

    def request(self, *words: Any) -> int:
        """Ask the agent something; ``answer`` has the answer to this number, when it has come."""
        number = next(self._numbers)
        self.send(*words, number)
        return number

    def has_answer(self, number: int) -> bool:
        """Whether the answer is there, or will never come."""
        self.take_in()
        return bool(self.lost) or number in self._answers

    def answer(self, number: int) -> Any:
        """The answer that has come to a request; None if there is none."""
        return self._answers.pop(number, None)

    def ask(self, *words: Any, limit: float | None = None) -> Any:
        """Ask, and wait for the answer; None if there is none within ``limit`` seconds, or soon."""
        number, until = self.request(*words), time.monotonic() + (_SOON if limit is None else limit)
        while not self.has_answer(number) and (left := until - time.monotonic()) > 0:
            wait([self.fileno()], left)
        return self.answer(number)

    def check(self) -> None:
        """See that the agent is there, and what its clock shows. Raises OSError if it is gone."""
        began = time.monotonic()
        theirs = self.ask("clock", limit=_PATIENCE)
        if not isinstance(theirs, float):
            self.lose(f"it said nothing for {_PATIENCE:g} s")
            raise ConnectionError(self.gone())
        self.clock = (began + time.monotonic()) / 2 - theirs

    def name(self) -> str:
        """The agent in words."""
        return f"the agent of rank {self.rank} on node {self.node}"

    def gone(self) -> str:
        """Why it is gone, in words."""
        return f"{self.name()} is gone: {self.lost}"

    def get_ready(self, backend: Backend) -> None:
        """Have the agent import what workers of this backend will need."""
        self.send("ahead", backend.start_method, _about(backend), programs())

    def carry(self, worker: AttachedHandle) -> int:
        """A number for a new worker; what the agent says of it is for ``worker`` to hear."""
        number = next(self._numbers)
        self._workers[number] = worker
        return number

    def drop(self, number: int) -> None:
        """Hear no more of a worker."""
        self._workers.pop(number, None)

    def take_in(self) -> None:
        """Give what has arrived to those whom it is for."""
        if self.lost:
            return
        ended = ""
        try:
            if not self._line.receive():
                ended = "its connection has ended"
        except OSError as error:  # nothing has come from its machine for long
            ended = f"its connection is lost: {error}"
        try:
            while (message := self._line.next()) is not None:
                self._give(*wire.decode(message))
        except ValueError as error:
            ended = f"what it said cannot be trusted: {error}"
        if ended:
            self.lose(ended)

    def _give(self, tag: str, number: int, *rest: Any) -> None:
        if tag == "answer":
            self._answers[number] = rest[0]
        elif number in self._workers:
            self._workers[number].heard.append([tag, *rest])

    def lose(self, why: str) -> None:
        """Give the agent up; its workers end with it."""
        if not self.lost:
            self.lost = why
            self._line.close()
            for worker in self._workers.values():
                worker.heard.append(["died", self.gone(), None, "", ""])

    def leave(self) -> None:
        """Let the agent go, and wait until it has."""
        self.send("goodbye")
        until = time.monotonic() + _SOON
        while not self.lost and wait([self.fileno()], max(0.0, until - time.monotonic())):
            self.take_in()
        self.lose("it was told to leave")


class AttachedHandle(WorkerHandle):
    """The controller's end of a worker process at an agent's: what any ``WorkerHandle`` does, by asking the agent."""

    def __init__(self, member: Member, ranks: tuple[int, ...], backend: Backend, method: str) -> None:
        """Have the agent start it. Raises OSError if the agent is gone; what else goes wrong, it will say."""
        member.check()
        self.ranks = ranks
        self.is_ready = self.is_dead = False
        self.clock = member.clock
        self.code: int | None = None
        self.pid = 0  # it is no process of this machine, or none that is ours to end
        self.heard: deque[list[Any]] = deque()
        self._stacks, self._asked_stacks, self._asked_flight = "", 0, 0
        self._disturbance = ""
        self._member, self._number = member, member.carry(self)
        member.send("start", self._number, ranks[0], method, _about(backend), programs())

    def is_idle(self) -> bool:
        """Whether the process lives and has nothing to say."""
        self._member.take_in()
        return not self.is_dead and not self.heard and not self._member.lost

    def has_message(self) -> bool:
        """Whether there is something that was heard and not taken yet."""
        return bool(self.heard)

    def waitables(self) -> list[Any]:
        """What becomes readable when the agent says something."""
        return [] if self.is_dead or self._member.lost else [self._member]

    def forward(self, order: bytes) -> None:
        """Give an order that is pickled already, see ``WorkerHandle.send``."""
        self._member.send("order", self._number, order)

    def receive(self) -> Iterator[list[Any]]:
        """What the worker has sent since, see ``WorkerHandle.receive``."""
        self._member.take_in()
        while self.heard:
            tag, *rest = self.heard.popleft()
            if tag == "said":
                try:
                    yield wire.decode(rest[0])
                except ValueError as error:
                    yield ["died", f"{GARBLED}: {error}"]
            else:
                words, self.code, self._stacks, self._disturbance = rest
                self.is_dead = True
                yield ["died", words]

    def disturbance(self) -> str:
        """In words, what from outside has ended or stopped the process, or its agent."""
        found = self._disturbance
        if not self.is_dead:
            found = self._member.ask("disturbance", self._number, limit=_PATIENCE)
        if self._member.lost:
            return self._member.gone()
        if found is None:
            return f"{self._member.name()} said nothing for {_PATIENCE:g} s"
        return f"{found}, at {self._member.name()}" if found else ""

    # Evidence.

    def forget(self) -> None:
        """From here on, log and stacks show only what is written after this moment."""
        self._stacks = ""
        self._member.send("forget", self._number)

    def has_files(self) -> bool:
        """Whether what the worker writes can be read, there."""
        return self._member.ask("files", self._number) is True

    def log_tail(self) -> str:
        """The last 4 KiB that the worker and its children wrote to stdout and stderr."""
        return self._member.ask("log", self._number) or ""

    def stacks(self) -> str:
        """All stacks that the worker has shown."""
        return self._stacks

    def ask_for_stacks(self) -> None:
        """Make the worker write the stacks of all its threads, whatever it is doing."""
        self._asked_stacks = self._member.request("stacks", self._number)

    def has_shown_stacks(self) -> bool:
        """Whether they are here."""
        if self._asked_stacks and self._member.has_answer(self._asked_stacks):
            self._stacks = self._member.answer(self._asked_stacks) or self._stacks
            self._asked_stacks = 0
        return not self._asked_stacks

    def ask_for_flight(self) -> bool:
        """Make the worker write down its last collectives. False if it is dead."""
        if self.is_dead or self._member.lost:
            return False
        self._asked_flight = self._member.request("flight", self._number)
        return True

    def has_shown_flight(self) -> bool:
        """Whether they are here, or will never be."""
        return self._member.has_answer(self._asked_flight)

    def shown_flight(self) -> flight_recorder.Flight | None:
        """What it has written down; None if that is not to be understood."""
        return flight_recorder.understood(self._member.answer(self._asked_flight) or b"")

    def running_rank(self) -> int | None:
        """It has but one."""
        return self.ranks[0]

    # The end.

    def kill(self) -> None:
        """Have the worker killed with all that it started."""
        self._member.send("kill", self._number)

    def close(self) -> None:
        """Have the agent see to its end, and hear no more of it."""
        self._member.send("end", self._number)
        self._member.drop(self._number)
        self.is_dead = True


def _about(backend: Backend) -> tuple[Any, ...]:
    return backend.device_type, backend.imports, dict(backend.environment)
