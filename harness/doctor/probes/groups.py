"""Rows about process groups, asked on small worlds of ranks: one run of the world for each question.

So a rank that dies or hangs costs its own question alone: the world starts anew for the next one. A row of several
questions ("reduce-scatter bfloat16") stops at the first that ends a rank, and goes on after one that is merely wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from harness.data.text import one_line
from harness.doctor.probes import collectives, members, work
from harness.doctor.probes.answer import finding, require
from harness.doctor.probes.exact import in_step
from harness.doctor.rows import Finding, State
from harness.vendor.api import Backend
from harness.vendor.load import Subject
from harness.worlds.base import Disturbed, Fate, NotRun, Outcome, World, first_cause
from harness.worlds.make import open_world
from harness.worlds.rank import Rank

ASKS = {**members.ASKS, **collectives.ASKS, **work.ASKS}
#: Rows that say more on four ranks than on two.
_ON_FOUR, _MOST = ("16d", "22a"), 4
_ORDER = (State.WRONG, State.MISSING, State.NOT_TRIED, State.FOUND)


def answer(rank: Rank, row: str, question: str) -> list[str]:
    """The program that every rank runs: one question, and what this rank says to it."""
    found = finding(lambda: in_step(lambda: ASKS[row][question](rank)))
    return [found.state.value, found.said]


def registered(backend: Backend) -> str:
    """Row 21a."""
    name, device = backend.process_group.lower(), backend.device_type
    owners, able = dist.Backend.default_device_backend_map, dist.Backend.backend_capability
    if ":" in name:
        return f"{name!r} names a backend for each device"
    if name not in dist.Backend.backend_list:
        raise NotImplementedError(f"torch knows no backend {name!r}: {', '.join(dist.Backend.backend_list)}")
    letters = sorted(one for one, owner in owners.items() if len(one) == 1 and owner == name)
    require(not letters, f"it is registered for devices {', '.join(letters)}: `devices` was a string, not a list")
    devices = able.get(name)
    require(devices is None or device in devices, f"it is registered for {devices}, not for {device!r}")
    owner = owners.get(device)
    return "" if owner == name else f"not the default for {device}: that is {owner}"


@dataclass
class Groups:
    """Asks about the process groups of one backend.

    ``patience`` is how long ranks may take to start, in seconds, and a question a quarter of it; ``ahead`` is called
    before each question, since a row may have many.
    """

    implementation: str
    name: str
    backend: Backend
    patience: float
    ahead: Callable[[], object]
    _worlds: dict[tuple[int, str], World] = field(default_factory=dict)

    def ask(self, row: str) -> Finding:
        """What all ranks say to the questions of a row."""
        if row == "21a":
            return finding(lambda: registered(self.backend))
        if self.backend.ranks < 1:
            return Finding(State.NOT_TRIED, "the backend offers no ranks: Backend.ranks is 0")
        if row == "16d" and self.backend.ranks < _MOST:
            return Finding(State.NOT_TRIED, f"the backend offers {self.backend.ranks} ranks")
        size = _MOST if row in _ON_FOUR and self.backend.ranks >= _MOST else min(2, self.backend.ranks)
        key = f"22a:{size}" if row == "22a" else row
        return _together(self._each(key, size), len(ASKS[key]))

    def _each(self, key: str, size: int) -> Iterator[tuple[str, Finding, bool]]:
        """Each question of the row with what was found, and whether it ended a rank."""
        name = self.implementation if key == "30" else "torch"
        world = self._world(size, name)
        for question in ASKS[key]:
            found, is_end = self._asked(world, key, question)
            yield question, found, is_end
            if is_end:
                return

    def _asked(self, world: World, key: str, question: str) -> tuple[Finding, bool]:
        limit = self.patience / 4
        clock = threading.Timer(self.patience + limit, world.expire, [f"{self.patience + limit:g} s had passed"])
        clock.daemon = True
        self.ahead()
        clock.start()
        try:
            outcomes = world.run(answer, key, question, deadline=limit)
        except NotRun as error:
            return Finding(State.WRONG, _short("; ".join(str(error).splitlines()[:2]))), True
        except Disturbed as error:
            return Finding(State.NOT_TRIED, _short(str(error))), True
        finally:
            clock.cancel()
        if any(outcome.fate is not Fate.RETURNED for outcome in outcomes):
            return _ended(outcomes), True
        return _of_ranks([_said(outcome.value) for outcome in outcomes]), False

    def _world(self, size: int, implementation: str) -> World:
        key = (size, implementation)
        if key not in self._worlds:
            self.close()  # one at a time: a device may not hold two
            subject = Subject(implementation, self.name)
            self._worlds[key] = open_world("processes", size, subject)
        return self._worlds[key]

    def close(self) -> None:
        """End the ranks."""
        while self._worlds:
            self._worlds.popitem()[1].close()


def _said(value: Any) -> Finding:
    """What one rank said, if it said anything that a rank says: it may have run anybody's code."""
    try:
        state, words = value
        return Finding(State(state), one_line(str(words)))
    except (TypeError, ValueError):
        return Finding(State.WRONG, "a rank answered something that is no finding")


def _of_ranks(said: list[Finding]) -> Finding:
    """The worst of all ranks, by the first that says so."""
    worst = min((found.state for found in said), key=_ORDER.index)
    number = next(place for place, found in enumerate(said) if found.state is worst)
    if worst in (State.FOUND, State.NOT_TRIED):
        return said[number]
    refused = [place for place, found in enumerate(said) if found.state is State.MISSING]
    if worst is State.MISSING and len(refused) == len(said):
        return said[0]
    if worst is State.MISSING:
        return Finding(State.WRONG, f"only rank {number} refused: {said[number].said}")
    return Finding(worst, f"rank {number}: {said[number].said}")


def _ended(outcomes: tuple[Outcome, ...]) -> Finding:
    """Some rank died, or hung; what another said before that may be the reason."""
    first = first_cause(outcomes)
    assert first is not None
    words = f"rank {first.rank} {first.fate}: {first.error}"
    for outcome in outcomes:
        if outcome.fate is Fate.RETURNED and (found := _said(outcome.value)).state is not State.FOUND:
            words = f"rank {outcome.rank}: {found.said}; then {words}"
            break
    return Finding(State.WRONG, _short(words))


def _short(words: str) -> str:
    return one_line(words.partition("\nException raised from")[0], 400)


def _together(answers: Iterator[tuple[str, Finding, bool]], questions: int) -> Finding:
    """A row's finding: the worst of its questions, naming all that are as bad and telling of the first."""
    everything = list(answers)
    worst = min((found.state for _, found, _ in everything), key=_ORDER.index)
    if worst is State.NOT_TRIED and any(found.state is State.FOUND for _, found, _ in everything):
        worst = State.FOUND
    bad = [(question, found) for question, found, _ in everything if found.state is worst]
    question, said = next(((question, found.said) for question, found in bad if found.said), ("", ""))
    if worst is State.FOUND:
        return Finding(worst, f"{question} {said}".strip())
    names = ", ".join(question for question, _ in bad if question) if len(bad) < len(everything) else ""
    ended = " (not asked further)" if everything[-1][2] and len(everything) < questions else ""
    return Finding(worst, one_line(": ".join(filter(None, (names, said))) + ended))
