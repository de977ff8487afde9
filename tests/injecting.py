"""Doing to a world what the table says, and finding whatever is other than it should be."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from harness.worlds import handle, hosts
from harness.worlds.base import Outcome, World, first_cause
from harness.worlds.make import open_world
from tests import programs_spoiling as spoiling
from tests.harness_faults import DEADLINE, LEAVE, End, Fates, Fault
from tests.worlds import TORCH_ON_GLOO, fates

#: How much longer than its deadline a run may take, or than what it was given to leave: machines may be busy.
PATIENCE = 5.0
#: The most that all texts of an outcome may have together.
MOST_TEXT = 300_000

#: What programs found in worlds that nothing had happened to, by kind.
_unharmed: dict[str, list[Any]] = {}


@contextmanager
def short_times() -> Iterator[None]:
    """Ranks that do not leave, or do not end, are waited for as long as the table says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosts, "LEAVE_SECONDS", LEAVE)
        patch.setattr(handle, "END_SECONDS", LEAVE)
        yield


def look(kind: str) -> None:
    """See what there is in a world that nothing has happened to, for comparison."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        _unharmed[kind] = [outcome.value for outcome in world.run(spoiling.looks_around, deadline=20)]


def inject(kind: str, fault: Fault) -> list[str]:
    """Run the fault, then the same world again, then the next one; in words, what was not as it should be."""
    end = fault.end(kind)
    assert isinstance(end, End)
    world = open_world(kind, 2, TORCH_ON_GLOO)
    try:
        found = _harm("before", world, kind)
        started = time.monotonic()
        outcomes = world.run(fault.program, *fault.args, deadline=fault.deadline)
        found += _late("the run", started, DEADLINE) + _other(outcomes, end.fates, end.words, end.culprit)
        if end.runs_again:
            found += _harm("the same world", world, kind)
        started = time.monotonic()
        left = world.close()
        found += _late("leaving", started, 2 * LEAVE) + _other(left, *_left(end, kind))
        found += _unnoted(world, end)
    finally:
        world.close()
    with open_world(kind, 2, TORCH_ON_GLOO) as after:
        found += _harm("the next world", after, kind)
    return found


def _left(end: End, kind: str) -> tuple[Fates, str, int | None]:
    """How ranks leave: those of a thread world have one process, and leave as one."""
    if kind != "threads":
        return end.left, end.words, end.culprit
    return (end.left[1], end.left[1]), end.words, None


def _harm(where: str, world: World, kind: str) -> list[str]:
    outcomes = world.run(spoiling.looks_around, deadline=20)
    found = []
    for outcome, unharmed in zip(outcomes, _unharmed[kind], strict=True):
        if outcome.value is None:
            found.append(f"{where}: rank {outcome.rank} {outcome.fate}: {outcome.error}")
        elif not torch.equal(outcome.value["total"], torch.full((3,), 3.0)):
            found.append(f"{where}: rank {outcome.rank} summed up to {outcome.value['total']}")
        else:
            others = [name for name in unharmed if name != "total" and outcome.value[name] != unharmed[name]]
            found += [f"{where}: {name} is {outcome.value[name]}, not {unharmed[name]}" for name in others]
    return found


def _late(what: str, started: float, limit: float) -> list[str]:
    took = time.monotonic() - started
    return [f"{what} took {took:.1f} s, of at most {limit + PATIENCE:g}"] if took > limit + PATIENCE else []


def _other(outcomes: Sequence[Outcome], expected: Fates, words: str, culprit: int | None) -> list[str]:
    """How outcomes differ from what was expected: fates, the first cause and its words, and how much they say."""
    told = "; ".join(f"rank {o.rank} {o.fate}: {o.error[:300]}" for o in outcomes)
    if fates(tuple(outcomes)) != list(expected):
        return [f"expected {', '.join(expected)}, got {told}"]
    found = [f"rank {o.rank} says too much" for o in outcomes if len(o.error + o.traceback + o.log) > MOST_TEXT]
    first = first_cause(outcomes)
    if first is not None:
        if culprit not in (None, first.rank):
            found.append(f"expected rank {culprit} to be the first cause, got {told}")
        if not re.search(words, first.error, re.DOTALL):
            found.append(f"expected {words!r} of the first cause, got {told}")
    return found


def _unnoted(world: World, end: End) -> list[str]:
    notes = list(getattr(world, "notes", ()))
    if end.note:
        return [] if any(re.search(end.note, note) for note in notes) else [f"expected note {end.note!r}, got {notes}"]
    return []
