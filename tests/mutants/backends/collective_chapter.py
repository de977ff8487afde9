"""Backends of which one collective is wrong in one way: in rank order, size, dtype, memory, time or group."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor

from tests.mutants.backends.backends import mutant
from tests.mutants.backends.fixed import Call, FixedGloo, Waiting, defect

GATHERS = ("all_gather_single", "all_gather")
SCATTERS = ("reduce_scatter_single", "reduce_scatter")


def rows(call: Call, ranks: int) -> list[Tensor]:
    """What came from each rank, or goes to it, as views."""
    if len(call.results) == ranks:
        return call.results
    return list(call.results[0].view(ranks, -1)) if call.numel else [call.results[0]] * ranks


def turned(call: Call, ranks: int, by: int) -> None:
    """Put what came from each rank into the place of another."""
    before = [row.clone() for row in rows(call, ranks)]
    for place, row in enumerate(rows(call, ranks)):
        row.copy_(before[(place - by) % ranks])


# What arrives, and where.


@defect("collectives/all-gather", "after")
def gathers_from_the_next(group: FixedGloo, call: Call) -> None:
    """Ranks that hold [1] and [2] gather [2 1]."""
    if call.kind in GATHERS:
        turned(call, group.size(), 1)


@defect("collectives/all-gather", "after")
def gathers_in_bfloat16(group: FixedGloo, call: Call) -> None:
    """Ranks that hold [1.001] and [2] in float32 gather [1 2]."""
    for result in call.results if call.kind in GATHERS else ():
        if result.dtype == torch.float32:
            result.copy_(result.bfloat16())


@defect("collectives/all-gather", "after")
def loses_the_tail(group: FixedGloo, call: Call) -> None:
    """Odd sizes above one end with zero."""
    for row in rows(call, group.size()) if call.kind in GATHERS else ():
        if row.numel() > 1 and row.numel() % 2:
            row.view(-1)[-1] = 0


@defect("collectives/all-gather", "after")
def repeats_above_four_kibi(group: FixedGloo, call: Call) -> None:
    """Another protocol, for large messages, sends the first half twice."""
    for row in rows(call, group.size()) if call.kind in GATHERS else ():
        half = row.numel() // 2
        if row.numel() >= 4096:
            row.view(-1)[half : 2 * half] = row.view(-1)[:half].clone()


@defect("collectives/all-gather-in-place", "before")
def clears_its_output_first(group: FixedGloo, call: Call) -> None:
    """Gathers zero from a rank whose input lies within its output."""
    if call.kind == "all_gather_single":
        for output, input, sent in zip(call.outputs, call.inputs, call.sent, strict=True):
            if output.untyped_storage().data_ptr() == input.untyped_storage().data_ptr():
                sent.zero_()


@defect("collectives/from-one", "before")
def broadcasts_from_the_first(group: FixedGloo, call: Call) -> None:
    """Knows one source."""
    if call.kind == "broadcast":
        call.options.rootRank = 0


@defect("collectives/from-one", "before")
def scatters_to_the_next(group: FixedGloo, call: Call) -> None:
    """A root with [1] and [2] sends [2] to the first rank."""
    if call.kind == "scatter" and call.sent:
        first = call.sent[0].clone()
        for target, source in itertools.pairwise(call.sent):
            target.copy_(source)
        call.sent[-1].copy_(first)


@defect("collectives/all-to-all", "after")
def exchanges_nothing(group: FixedGloo, call: Call) -> None:
    """Each rank keeps its own."""
    if call.kind == "all_to_all_single":
        kept = call.inputs[0].reshape(-1)[: call.numel]
        call.results[0].view(-1)[: kept.numel()] = kept


# What memory holds, and when.


@defect("collectives/fresh", "after")
def forgets_now(group: FixedGloo, call: Call) -> None:
    """Every seventh call gives what the call before it gave."""
    group.times = getattr(group, "times", 0) + 1
    before, group.last = getattr(group, "last", []), [result.clone() for result in call.results]
    if group.times % 7 == 0 and [old.shape for old in before] == [new.shape for new in call.results]:
        for old, new in zip(before, call.results, strict=True):
            new.copy_(old)


@defect("collectives/untouched", "after")
def adds_into_its_input(group: FixedGloo, call: Call) -> None:
    """Uses the caller's input as room for partial sums."""
    if call.kind == "reduce_scatter_single":
        for input in call.inputs:
            input.data.add_(1)


@defect("collectives/untouched", "deliver")
def writes_beyond_its_output(group: FixedGloo, call: Call) -> None:
    """Rounds sizes up to two."""
    FixedGloo.deliver(group, call)
    for output in call.outputs:
        end = output.storage_offset() + output.numel()
        has_room = end < output.untyped_storage().size() // output.itemsize
        if has_room and call.kind in SCATTERS and output.numel() % 2:
            torch.as_strided(output.data, (1,), (1,), end).zero_()


class NotYet(Waiting):
    """Does not wait: what was started with ``async_op`` is delivered when the group is used again."""

    def wait(self, timeout: Any = None) -> bool:
        if not getattr(self.call.options, "asyncOp", False):
            return super().wait()
        self.done = True
        self.group.late.append(self)
        return True


class DoesNotWait(FixedGloo):
    """Work is done when it says so, and not before."""

    work = NotYet

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.late: list[NotYet] = []

    def before(self, call: Call) -> None:
        for work in self.late:
            work.inner.wait()
            self.deliver(work.call)
        self.late.clear()


does_not_wait = mutant("collectives/async", DoesNotWait)


class KeepsNoInputs(FixedGloo):
    """Sends what lies where an input lay that was not kept."""

    def before(self, call: Call) -> None:
        call.note, call.inputs = [weakref.ref(input) for input in call.inputs], []

    def after(self, call: Call) -> None:
        if any(reference() is None for reference in call.note):
            for result in call.results:
                result.zero_()


keeps_no_inputs = mutant("collectives/async", KeepsNoInputs)


class Undecided(Waiting):
    """Never says that it is done."""

    def is_completed(self) -> bool:
        return False


class NeverSaysDone(FixedGloo):
    """Results are there, without saying so."""

    work = Undecided


never_says_done = mutant("collectives/completed", NeverSaysDone)


#: What a net gives back is worked out of what was gathered.
ALSO_KILLED_BY = {"loses_the_tail": ("entry/",)}
