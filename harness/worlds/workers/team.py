"""The host processes of one world, their private directory, and the promise that none of them is left behind."""

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
from harness.worlds.workers.handle import HostHandle, wait_for_files

#: How long hung hosts may take to show their stacks, and then their last collectives.
_STACK_SECONDS = 5.0
_FLIGHT_SECONDS = 3.0

#: What starts the host of some ranks, by a method, which keeps its files in a directory if it is on this machine.
Starts = Callable[[tuple[int, ...], Backend, str, Path], HostHandle]

_alive: weakref.WeakSet[Team] = weakref.WeakSet()


class Team:
    """Hosts that work together: each carries some ranks, all are watched at once, all end together."""

    def __init__(
        self, ranks: Sequence[tuple[int, ...]], backend: Backend, method: str, starts: Starts = HostHandle
    ) -> None:
        """``starts`` starts each host, where its ranks are to be."""
        self.directory = Path(tempfile.mkdtemp(prefix="world-", dir=folder()))
        self.hosts: list[HostHandle] = []
        #: The number of the run that is on, or was last; and what a program has spoilt for the next one, in words.
        self.runs = 0
        self.spoilt = ""
        self._owner = os.getpid()
        _alive.add(self)
        try:
            for number, carried in enumerate(ranks):
                self.hosts.append(starts(carried, backend, method, self.directory / f"host-{number}"))
        except BaseException:
            self.end()
            raise

    @property
    def has_role(self) -> bool:
        """Whether any host has taken a role and not given it up."""
        return any(host.is_ready for host in self.hosts)

    def new_store(self) -> Path:
        """A path where ranks can meet that nobody has met at before, for the next run."""
        self.runs += 1
        for host in self.hosts:
            host.forget()
        return self.directory / f"store-{self.runs}"

    def is_whole(self) -> bool:
        """Whether the directory is still there with what hosts keep in it: a program can remove anything."""
        return all(host.has_files() for host in self.hosts)

    def listen(self, until: Callable[[], float], wake: int | None = None) -> Iterator[tuple[HostHandle, list[Any]]]:
        """What hosts say or how they die, as it happens.

        Ends at ``until()``, or when ``wake`` is readable, or when there is no host left that could say something.
        What was said until then is still heard.
        """
        ready: list[Any] = []
        while wake not in ready:
            speakers = [host for host in self.hosts if host.was_heard()]
            if not speakers:
                owners = {thing: host for host in self.hosts for thing in host.waitables()}
                if not owners:
                    return
                heard = [*owners, *([] if wake is None else [wake])]
                # Who was stopped and wakes after the deadline has not looked: what came in time is still there.
                ready = wait(heard, max(0.0, until() - time.monotonic())) or wait(heard, 0)
                if not ready:
                    return
                speakers = list(dict.fromkeys(owners[thing] for thing in ready if thing in owners))
            for host in speakers:
                for message in host.hear():
                    yield host, message

    def disturbance(self) -> str:
        """In words, what from outside has ended or stopped hosts; "" if nothing is known of that."""
        return "; ".join(dict.fromkeys(filter(None, (host.disturbance() for host in self.hosts))))

    def show_stacks(self, hosts: Sequence[HostHandle]) -> dict[HostHandle, str]:
        """The stacks of ``hosts``, as far as they show them in time."""
        for host in hosts:
            host.ask_for_stacks()
        wait_for_files(lambda: all(host.has_shown_stacks() for host in hosts), _STACK_SECONDS)
        return {host: host.stacks() for host in hosts}

    def show_flights(self) -> dict[int, flight_recorder.Flight]:
        """The last collectives of each rank whose host tells them in time. To be had after the stacks, not in them."""
        asked = [host for host in self.hosts if host.ask_for_flight()]
        wait_for_files(lambda: all(host.has_shown_flight() for host in asked), _FLIGHT_SECONDS)
        shown = {host.ranks[0]: host.shown_flight() for host in asked}
        return {rank: found for rank, found in shown.items() if found is not None}

    def kill(self) -> None:
        """Kill all hosts and whatever they started; their files stay until ``end``."""
        if os.getpid() == self._owner:  # a forked copy of the controller must not kill its parent's ranks
            for host in self.hosts:
                host.kill()

    def end(self) -> None:
        """Kill what still lives and leave nothing behind."""
        self.kill()
        if os.getpid() == self._owner:
            for host in self.hosts:
                host.close()
            end_orphans(host.pid for team in _alive for host in team.hosts if not host.is_dead)
            shutil.rmtree(self.directory, ignore_errors=True)
        _alive.discard(self)


@atexit.register
def end_all() -> None:
    """End every team there is. Registered after multiprocessing's own handler, it runs before that waits for hosts."""
    for team in list(_alive):
        team.end()
