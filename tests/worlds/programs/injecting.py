"""Doing to a world what the table says, and finding whatever is other than it should be."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from harness.worlds.base import Disturbed, Fate, Outcome, World, first_cause
from harness.worlds.make import open_world
from harness.worlds.workers import handle, supervise, teardown
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO, fates
from tests.worlds.programs.hanging import deadline_when_all_hang
from tests.worlds.programs.harness_faults import CLOSED, LEAVE, End, Fates, Fault
from tests.worlds.programs.surroundings import looks_around

#: The most that all texts of an outcome may have together.
MOST_TEXT = 300_000

#: What programs found in worlds that nothing had happened to, by kind.
_unharmed: dict[str, list[Any]] = {}


def look(kind: str) -> None:
    """See what there is in a world that nothing has happened to, for comparison."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        _unharmed[kind] = [outcome.value for outcome in world.run(looks_around, deadline=GUARD)]


@contextmanager
def _times(end: End) -> Iterator[None]:
    """What never ends is waited for only briefly, but peers are until they have told their own end."""
    with pytest.MonkeyPatch.context() as patch:
        if Fate.HUNG in end.left:
            patch.setattr(teardown, "LEAVE_SECONDS", LEAVE)
        if Fate.INTERRUPTED not in (end.fates or ()):
            patch.setattr(supervise, "GRACE", GUARD)
        if CLOSED in end.words:
            patch.setattr(handle, "END_SECONDS", 0.1)
        yield


@contextmanager
def _deadline(world: World, fault: Fault) -> Iterator[float]:
    """How long the run may take. Ranks that share a process see to their deadline themselves, unless it is stopped."""
    is_stopped = world.kind == "threads" and "stopped" in fault.hangs
    hangs = ("stopped",) if is_stopped else () if world.kind == "threads" else fault.hangs
    with deadline_when_all_hang(world, hangs) if hangs else nullcontext():
        yield GUARD if hangs else fault.deadline


def inject(kind: str, fault: Fault) -> list[str]:
    """Run the fault, then the same world again, then the next one; in words, what was not as it should be."""
    end = fault.end(kind)
    assert isinstance(end, End)
    world = open_world(kind, 2, TORCH_ON_GLOO)
    try:
        found = _harm("before", world, kind)
        with _times(end):
            found += _run(world, fault, end)
            if end.runs_again:
                found += _harm("the same world", world, kind)
            found += _other(world.close(), *_left(end, kind))
        found += _unnoted(world, end)
    finally:
        world.close()
    with open_world(kind, 2, TORCH_ON_GLOO) as after:
        found += _harm("the next world", after, kind)
    return found


def _run(world: World, fault: Fault, end: End) -> list[str]:
    """Run the fault; how it ended otherwise than expected."""
    try:
        with warnings.catch_warnings(record=True), _deadline(world, fault) as deadline:  # warns when it is repeated
            outcomes = world.run(fault.program, *fault.args, deadline=deadline)
    except Disturbed as error:
        is_expected = end.fates is None and re.search(end.words, str(error))
        return [] if is_expected else [f"expected {end}, but the run was disturbed: {error}"]
    if end.fates is None:
        return [f"expected a run that is disturbed twice, got {fates(outcomes)}"]
    return _other(outcomes, end.fates, end.words, end.culprit)


def _left(end: End, kind: str) -> tuple[Fates, str, int | None]:
    """How ranks leave: those of a thread world have one process, and leave as one."""
    if kind != "threads":
        return end.left, end.words, end.culprit
    return (end.left[1], end.left[1]), end.words, None


def _harm(where: str, world: World, kind: str) -> list[str]:
    outcomes = world.run(looks_around, deadline=GUARD)
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
