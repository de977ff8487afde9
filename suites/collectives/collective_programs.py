"""Programs that call the collectives of the backend under judgement, and return the memory that they leave.

Each call's tensors are laid out as the case says; what comes back is the whole memory around them, so that a number
written beside an output shows. FSDP itself does not run here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from harness.collective_trace.torch_names import all_gather, premultiplied_sum, reduce_scatter
from harness.worlds.rank import Rank
from suites.collectives.collective_cases import (
    IN_PLACE,
    MARK,
    Collective,
    CollectiveCase,
    Memory,
    inputs,
    laid,
    seen,
)
from suites.collectives.collective_oracle import outputs


class Prepared:
    """One rank's part in a call: the group, the memory, and the tensors in it that the collective is given."""

    def __init__(self, rank: Rank, case: CollectiveCase, place: int, group: dist.ProcessGroup | None) -> None:
        self.call, self.members, self.group = case.steps[place], case.members(place), group
        self.member = self.members.index(rank.number)
        given = [] if self.call.kind in IN_PLACE else inputs(case, place, self.member)
        self.given, self.sent = self._laid(rank, given)
        self.got, self.received = self._laid(rank, outputs(case, place, self.member))

    def _laid(self, rank: Rank, values: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        layout = self.call.layout
        memory = [laid(each, layout).to(rank.device) for each in values]
        return memory, [seen(base, each.numel(), layout) for base, each in zip(memory, values, strict=True)]

    def within(self, views: list[Tensor]) -> Prepared:
        """The same, with its tensors in other memory, those that it gives first."""
        self.given, self.got = views[: len(self.given)], views[len(self.given) :]
        self.sent, self.received = self.given, self.got
        return self

    def start(self, async_op: bool = False) -> Any:
        """Make the call."""
        return CALLS[self.call.kind](self, {"group": self.group, "async_op": async_op})

    def memory(self) -> Memory:
        """What the memory holds now, on CPU."""
        return {"given": [t.cpu().clone() for t in self.given], "got": [t.cpu().clone() for t in self.got]}

    def performed(self) -> Memory:
        """What it holds after the call."""
        self.start()
        return self.memory()


def reduction(call: Collective) -> Any:
    """The operation as torch takes it."""
    return premultiplied_sum(call.factor) if call.op == "PREMUL_SUM" else getattr(dist.ReduceOp, call.op)


def _scatter(it: Prepared, how: dict[str, Any]) -> Any:
    return dist.scatter(it.received[0], it.sent or None, group_src=it.call.root, **how)


def _exchange(it: Prepared, how: dict[str, Any]) -> Any:
    if it.call.kind == "all_to_all_single":
        return dist.all_to_all_single(it.received[0], it.sent[0], **how)
    others = range(len(it.members))
    to = [it.call.part(it.member, other) for other in others]
    of = [it.call.part(other, it.member) for other in others]
    return dist.all_to_all_single(it.received[0], it.sent[0], of, to, **how)


def _own(it: Prepared) -> Tensor:
    return it.received[0].narrow(0, it.member * it.call.numel, it.call.numel)


CALLS: dict[str, Callable[[Prepared, dict[str, Any]], Any]] = {
    "all_gather_single": lambda it, how: all_gather(it.received[0], it.sent[0], **how),
    "all_gather": lambda it, how: dist.all_gather(it.received, it.sent[0], **how),
    "all_gather_in_place": lambda it, how: all_gather(it.received[0], _own(it), **how),
    "reduce_scatter_single": lambda it, how: reduce_scatter(it.received[0], it.sent[0], reduction(it.call), **how),
    "reduce_scatter": lambda it, how: dist.reduce_scatter(it.received[0], it.sent, reduction(it.call), **how),
    "all_reduce": lambda it, how: dist.all_reduce(it.received[0], reduction(it.call), **how),
    "broadcast": lambda it, how: dist.broadcast(it.received[0], it.members[it.call.root], **how),
    "scatter": _scatter,
    "all_to_all_single": _exchange,
    "all_to_all_uneven": _exchange,
}


def prepared(rank: Rank, case: CollectiveCase) -> list[Prepared | None]:
    """This rank's part in each call, None where it is no member of the group."""
    groups = [rank.group(ranks, copy) for copy, ranks in enumerate(case.groups)] or [None]
    return [
        Prepared(rank, case, place, groups[place % len(groups)]) if rank.number in case.members(place) else None
        for place in range(len(case.steps))
    ]


def taken(rank: Rank, case: CollectiveCase) -> list[Prepared]:
    """The same of those calls that this rank takes part in."""
    return [it for it in prepared(rank, case) if it]


# Programs.


def performed(rank: Rank, case: CollectiveCase) -> list[Memory]:
    """One call after the other; the memory that each leaves."""
    return [it.performed() if it else {} for it in prepared(rank, case)]


def tried(rank: Rank, case: CollectiveCase) -> list[Any]:
    """The same, until a call raises: then what it said comes last."""
    done: list[Any] = []
    for it in prepared(rank, case):
        try:
            done.append(it.performed() if it else {})
        except Exception as error:
            return [*done, {"raised": f"{type(error).__name__}: {error}"}]
    return done


def performed_twice(rank: Rank, case: CollectiveCase) -> list[list[Memory]]:
    """Everything, and then everything again from the same numbers."""
    return [performed(rank, case), performed(rank, case)]


def after_restarts(rank: Rank, case: CollectiveCase, path: str) -> list[list[Memory]]:
    """Everything among all ranks, and again among fewer and fewer, each time with a process group begun anew.

    Ranks meet in a file before one of them leaves a group, since its peers may still read what it sent.
    """
    done = []
    store, members = FileStore(f"{path}/before", case.world_size), case.world_size
    for size in range(case.world_size, 0, -1):
        store.set(f"rank {rank.number}", "")
        store.wait([f"rank {number}" for number in range(members)])
        dist.destroy_process_group()
        rank.forget_groups()
        if rank.number >= size:
            break
        store, members = FileStore(f"{path}/{size}", size), size
        dist.init_process_group(rank.backend.process_group, store=store, rank=rank.number, world_size=size)
        done.append(performed(rank, replace(case, world_size=size)))
    return done


def in_the_same_memory(rank: Rank, case: CollectiveCase) -> list[Memory]:
    """The calls, which are all alike, one after the other with the tensors of the first."""
    parts = taken(rank, case)
    done = []
    for it in parts:
        for old, new in zip([*parts[0].given, *parts[0].got], [*it.given, *it.got], strict=True):
            old.copy_(new)
        done.append(parts[0].performed())
    return done


def in_growing_parts(rank: Rank, case: CollectiveCase) -> list[Memory]:
    """The calls, each as long as the one before or longer, in the memory of the last, from its beginning."""
    parts = taken(rank, case)
    values = [[tensor.clone() for tensor in (*it.given, *it.got)] for it in parts]
    whole = [*parts[-1].given, *parts[-1].got]
    done = []
    for it, own in zip(parts, values, strict=True):
        views = [shared[: value.numel()].copy_(value) for shared, value in zip(whole, own, strict=True)]
        done.append(it.within(views).performed())
    return done


def side_by_side(rank: Rank, case: CollectiveCase) -> list[Memory]:
    """The calls, each with all its tensors in one memory, one after the other."""
    done = []
    for it in taken(rank, case):
        own = [*it.given, *it.got]
        done.append(it.within(list(torch.cat(own).split([tensor.numel() for tensor in own]))).performed())
    return done


def waited_again(rank: Rank, case: CollectiveCase) -> list[list[Tensor]]:
    """What outputs hold that were written over after a call, once its work has been waited for again."""
    parts = taken(rank, case)
    for it in parts:
        work = it.start(async_op=True)
        work.wait()
        for output in it.received:
            output.fill_(MARK)
        work.wait()
        work.is_completed()
    return [it.memory()["got"] for it in parts]


def in_flight(rank: Rank, case: CollectiveCase) -> list[dict[str, Any]]:
    """All calls started before any is waited for; inputs are forgotten, and ranks wait in orders of their own.

    ``completed`` is what a call's ``Work`` says once it was waited for, and its results have been read.
    """
    flying = [(it, it.start(async_op=True)) if it else None for it in prepared(rank, case)]
    for entry in flying:
        if entry:
            _forget_inputs(entry[0])
    done: list[dict[str, Any]] = [{} for _ in flying]
    for place in _turned(list(range(len(flying))), rank.number):
        entry = flying[place]
        if entry:
            entry[1].wait()
            done[place] = {"got": entry[0].memory()["got"], "completed": entry[1].is_completed()}
    return done


def _turned(places: list[int], by: int) -> list[int]:
    """Rank 0 waits for the last call first, rank 1 for the one before, and so on."""
    backwards = places[::-1]
    by %= max(1, len(places))
    return backwards[by:] + backwards[:by]


def _forget_inputs(it: Prepared) -> None:
    """Nothing here keeps what was sent, and other tensors of its size come and go."""
    sizes = [tensor.numel() for tensor in it.given]
    it.given, it.sent = [], []
    for numel in sizes:
        torch.full((numel,), 1, dtype=it.call.torch_dtype, device=it.got[0].device)
