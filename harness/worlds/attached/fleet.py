"""The ranks that a launcher has started, as the controller knows them; and how they find each other at the start.

All meet in the launcher's store, then each agent connects to the controller, and proves that it has the run's key::

    agent of rank 1                    store                          controller
    machine/1 = "boot id, network" ─▶                           ─▶    one machine, or several?
                                   ◀─  key, address             ◀─    listens on loopback, or one interface
    connects, greets, "hello" ────────────────────────────────────▶   all are there: the key leaves the store

So the key is known to whom the launcher's store lets in while ranks gather; see docs/decisions.md.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from harness.vendor.api import Backend
from harness.worlds import wire
from harness.worlds.attached.launch import GATHERING, Launch, family_of, machine, outward, store_of_world
from harness.worlds.attached.member import AttachedHandle, Member
from harness.worlds.attached.sealed_line import AGENT, CONTROLLER, SealedLine
from harness.worlds.base import NotRun
from harness.worlds.workers.handle import WorkerHandle

#: How often it is looked whether to go on listening, in seconds.
_LOOK = 0.1

_fleet: Fleet | None = None


class Fleet:
    """All ranks of a launch: this process, which is rank 0's, and the agents of the others."""

    def __init__(self, launch: Launch, store: PrefixStore, members: Collection[Member], on_one_machine: bool) -> None:
        self.size = launch.size
        self.on_one_machine = on_one_machine
        self._launch, self._store = launch, store  # which ends with this process, if it is kept here
        self._seen: dict[str, bool] = {}
        started = sorted(members, key=lambda member: member.rank)
        nodes = numbered([launch.node, *(member.node for member in started)])
        order = spread(nodes)
        self._members = {place: started[rank - 1] for place, rank in enumerate(order) if rank}
        for place, member in self._members.items():
            member.rank, member.node = place, nodes[member.rank]  # what worlds and messages call them
        self._nodes = [nodes[rank] for rank in order]
        self._locals = [launch.local, *(member.local for member in self._members.values())]

    def start(self, ranks: tuple[int, ...], backend: Backend, method: str, directory: Path) -> WorkerHandle:
        """Start the worker of a rank where the launcher has put that rank. Raises OSError if its agent is gone."""
        (rank,) = ranks
        if rank == 0:
            return WorkerHandle(ranks, backend, method, directory)
        return AttachedHandle(self._members[rank], ranks, backend, method)

    def start_ahead(self, backend: Backend) -> None:
        """Have agents get ready for workers of this backend before the first is needed."""
        for member in self._members.values():
            member.get_ready(backend)

    def store(self, path: Path) -> Callable[[], Store]:
        """What opens, on a rank, a store that no rank has used before; ``path`` is one that was never used here."""
        prefix = f"{self._launch.prefix}/{path.parent.name}/{path.name}"
        kept = cast("TCPStore", self._store.underlying_store)
        return partial(store_of_world, self._launch.address, kept.port, prefix)

    def place(self, rank: int, size: int) -> tuple[int, int, bool]:
        """Which of how many ranks of a world a rank is on its node; and whether all are on one machine."""
        here = [other for other in range(size) if self._nodes[other] == self._nodes[rank]]
        given = self._locals[rank]
        return here.index(rank) if given is None else given, len(here), self.on_one_machine

    def facts(self) -> dict[str, str]:
        """How many nodes there are, and how many ranks on each, for the record."""
        counts = Counter(self._nodes).values()
        each = {str(count): None for count in counts}
        return {"nodes": str(len(counts)), "ranks per node": ", ".join(each if len(each) == 1 else map(str, counts))}

    def sees(self, folder: str) -> bool:
        """Whether all ranks see what is made in a folder; asked once."""
        if folder not in self._seen:
            with tempfile.TemporaryDirectory(dir=folder) as path:
                self._seen[folder] = all(member.ask("sees", path) is True for member in self._members.values())
        return self._seen[folder]

    def lost(self) -> list[str]:
        """Which agents are gone, and why."""
        return [member.gone() for member in self._members.values() if member.lost]

    def close(self) -> None:
        """Let all agents go."""
        for member in self._members.values():
            member.leave()


def numbered(nodes: Sequence[str]) -> list[str]:
    """What messages call the nodes of ranks: ``"0"`` that of rank 0, ``"1"`` the next one that is another."""
    numbers = {node: str(number) for number, node in enumerate(dict.fromkeys(nodes))}
    return [numbers[node] for node in nodes]


def spread(nodes: Sequence[str]) -> list[int]:
    """In which order worlds take the ranks of a launch, which are on these nodes: one of each node, then the next.

    ``spread(["a", "a", "b", "b"])`` is ``[0, 2, 1, 3]``: two ranks meet over the network, and four, too.
    """
    turns, met = [], Counter[str]()
    for rank, node in enumerate(nodes):
        turns.append((met[node], rank))
        met[node] += 1
    return [rank for _, rank in sorted(turns)]


def fleet() -> Fleet:
    """The ranks that are attached to this process. Raises ValueError if none are."""
    if _fleet is None:
        raise ValueError(
            "an attached world needs ranks that are there already: start pytest by a launcher, as in "
            "`torchrun --nproc-per-node=2 -m fsdp_conformance attached -- pytest suites`"
        )
    return _fleet


def known() -> Fleet | None:
    """The same; None if none are."""
    return _fleet


def use(attached: Fleet | None) -> None:
    """From now on, these are the ranks of attached worlds."""
    global _fleet
    _fleet = attached


def facts() -> dict[str, str]:
    """What a record says of attached ranks; nothing if there are none."""
    return {} if _fleet is None else _fleet.facts()


#: Names a folder that all machines see, where ranks save and load; without it, that for temporary files must be one.
SHARED_VARIABLE = "FSDP_CONFORMANCE_SHARED"


def shared_folder() -> str:
    """Where to make files that all ranks read and write. Raises NotRun if there is no such place."""
    folder = os.environ.get(SHARED_VARIABLE) or tempfile.gettempdir()
    if _fleet is not None and not _fleet.on_one_machine and not _fleet.sees(folder):
        raise NotRun(f"not all machines see what is made in {folder}: name a folder that they do by {SHARED_VARIABLE}")
    return folder


# Finding each other.


def gather(launch: Launch, store: PrefixStore, seconds: float = GATHERING.total_seconds()) -> Fleet:
    """In rank 0's process: have all agents come. Raises OSError, with the missing ranks, if they do not in time."""
    until = time.monotonic() + seconds
    others = range(1, launch.size)
    machines = {store.get(f"machine/{rank}").decode() for rank in others}
    on_one_machine = machines <= {machine()}
    host = "127.0.0.1" if on_one_machine else outward(launch.address, launch.port)
    key = secrets.token_bytes(32)
    with listening(host, key) as (port, arrivals):
        store.set("key", key.hex())
        store.set("address", f"{port} {host}")
        members = _arrived(arrivals, set(others), until, host)
    store.delete_key("key")
    return Fleet(launch, store, members, on_one_machine)


def join(launch: Launch, store: Store) -> SealedLine:
    """In any other process: become the agent of its rank. Raises OSError if the controller cannot be reached."""
    store.set(f"machine/{launch.rank}", machine())
    port, _, host = store.get("address").decode().partition(" ")
    key = bytes.fromhex(store.get("key").decode())
    line = SealedLine(socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT), key, AGENT)
    line.send(wire.encode([launch.rank, launch.node, -1 if launch.local is None else launch.local]))
    return line


_SECONDS_TO_CONNECT = 30.0
_Arrivals = queue.Queue[Member]


@contextmanager
def listening(host: str, key: bytes) -> Iterator[tuple[int, _Arrivals]]:
    """Listen for agents while the block runs. Each connection has its own thread, so none delays others."""
    arrivals: _Arrivals = queue.Queue()
    is_over = threading.Event()

    def admit(connection: socket.socket) -> None:
        try:
            line = SealedLine(connection, key, CONTROLLER)
            rank, node, local = wire.decode(line.first())
            arrivals.put(Member(line, int(rank), str(node), None if local < 0 else int(local)))
        except Exception:  # not an agent of this run: anything may come
            with suppress(OSError):
                connection.close()

    def listen(listener: socket.socket) -> None:
        while not is_over.is_set():
            with suppress(OSError):  # no connection for a while, or one that has ended already
                threading.Thread(target=admit, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server((host, 0), family=family_of(host), backlog=1024) as listener:
        listener.settimeout(_LOOK)
        thread = threading.Thread(target=listen, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], arrivals
        finally:
            is_over.set()
            thread.join()


def _arrived(arrivals: _Arrivals, missing: set[int], until: float, host: str) -> list[Member]:
    found = []
    while missing:
        try:
            member = arrivals.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            ranks = ", ".join(map(str, sorted(missing)))
            raise TimeoutError(
                f"the agents of ranks {ranks} have not come to {host} in time: are their processes running, and does "
                "MASTER_ADDR name an address of rank 0's machine that theirs can reach?"
            ) from None
        if member.rank in missing:
            missing.remove(member.rank)
            found.append(member)
    return found
