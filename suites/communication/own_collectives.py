"""Collectives of the user's own, which note what they are asked for, and their uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.worlds.rank import Rank
from suites.communication.played import RecordedStack
from suites.kit.cases import TrainingCase
from suites.kit.expected_collectives import ROOT, group_sizes
from suites.kit.own_collectives import OwnGather, OwnReduction
from suites.oracle.sharded import State, played_on


class _Noting:
    """Notes each call: by which group, whether it may be early, and whether this object allocated its memory."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.ranks: list[list[int]] = []
        self.placed: list[bool] = []
        self.early: list[bool] = []
        self._memory: list[Tensor] = []

    def allocate(self, size: Sequence[int], **kind: Any) -> Tensor:
        """Ordinary memory, kept so that no other allocation can be mistaken for it."""
        self._memory.append(torch.empty(*size, **kind))
        return self._memory[-1]

    @property
    def freed(self) -> int:
        """How many pieces of that memory were freed, though this object keeps them."""
        return sum(memory.numel() > 0 and not memory.untyped_storage().size() for memory in self._memory)

    def run(self, collective: Any, tensors: tuple[Tensor, ...], group: dist.ProcessGroup, is_async: bool) -> Any:
        """One call; of a gather, the output alone has to lie there."""
        own = {memory.untyped_storage().data_ptr() for memory in self._memory}
        self.groups.append(group.group_name)
        self.early.append(is_async)
        self.ranks.append(dist.get_process_group_ranks(group))
        kept = tensors[:1] if isinstance(self, OwnGather) else tensors
        self.placed.append(all(tensor.untyped_storage().data_ptr() in own for tensor in kept))
        return collective(*tensors, group=group, async_op=is_async)


class NotingGather(_Noting, OwnGather):
    """An all-gather that notes."""


class NotingReduction(_Noting, OwnReduction):
    """A reduce-scatter that notes; all that is written to memory it has allocated is of gradients, or zero."""

    unwritten = 0

    def allocate(self, size: Sequence[int], **kind: Any) -> Tensor:
        """Memory that has been used before."""
        memory = super().allocate(size, **kind)
        return memory.fill_(math.nan) if memory.is_floating_point() else memory

    def run(self, collective: Any, tensors: tuple[Tensor, ...], group: dist.ProcessGroup, is_async: bool) -> Any:
        """One call, of an input without what was there before."""
        self.unwritten += int(tensors[1].isnan().sum())
        return super().run(collective, tensors, group, is_async)


class WorkingGather(NotingGather):
    """An all-gather that returns work, asked to or not."""

    def run(self, collective: Any, tensors: tuple[Tensor, ...], group: dist.ProcessGroup, is_async: bool) -> Any:
        """One call, which goes on when it returns."""
        return super().run(collective, tensors, group, is_async=True)


# What runs on ranks.


def train_with_own_collectives(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Train with other collectives on every module; how often these were asked, beside how often ranks spoke."""
    stack = RecordedStack(rank, case)
    own = give_own(stack)
    trace = played_on(stack)
    spoken = [entry["op"] for seen in trace for entry in seen["collectives"]]
    return {
        "trace": trace,
        "gathers": sum(len(gather.groups) for gather, _ in own) - spoken.count("all_gather"),
        "reductions": sum(len(reduction.groups) for _, reduction in own) - spoken.count("reduce_scatter"),
        "unasked": sum(not gather.groups or not reduction.groups for gather, reduction in own),
        "misplaced": sum(not all(each.placed) for pair in own for each in pair),
        "freed": sum(each.freed for pair in own for each in pair),
        "unwritten": sum(reduction.unwritten for _, reduction in own),
    }


def asked_to_return_early(rank: Rank, case: TrainingCase) -> dict[str, int]:
    """Train with other collectives on every module; how many calls there were with ``async_op``, and without."""
    stack = RecordedStack(rank, case)
    own = give_own(stack)
    played_on(stack)
    asked = [early for pair in own for each in pair for early in each.early]
    return {"early": sum(asked), "none at all": int(not asked)}


def returned_work(rank: Rank, case: TrainingCase) -> list[State]:
    """Train with gathers that return work; what could be seen after each action."""
    stack = RecordedStack(rank, case)
    give_own(stack, WorkingGather)
    return played_on(stack)


def give_own(
    stack: RecordedStack, gather: type[NotingGather] = NotingGather
) -> list[tuple[NotingGather, NotingReduction]]:
    """Give every sharded module that has parameters such a gather and a reduction of its own."""
    own = []
    for group in group_sizes(stack.case):
        own.append((gather(), NotingReduction()))
        for kind, collective in zip(("all_gather", "reduce_scatter"), own[-1], strict=True):
            stack.tell(f"set_custom_{kind}", collective, "" if group.name == ROOT else group.name)
    return own


def groups_of_reductions(rank: Rank, case: TrainingCase) -> list[dict[str, Any]]:
    """With the same group for gathers and reductions, with one apart, asked for twice, and with the same again.

    Groups are numbered in the order in which they are first used.
    """
    stack = RecordedStack(rank, case)
    numbers: dict[str, int] = {}
    found = []
    for enable in (None, True, True, False):
        if enable is not None:
            stack.tell("set_separate_reduce_scatter_group", enable)
        own = give_own(stack)
        for action in ("forward", "backward", "drop"):
            stack.do(action, ())
        gathers, reductions = (
            [numbers.setdefault(name, len(numbers)) for each in kind for name in each.groups]
            for kind in zip(*own, strict=True)
        )
        ranks = [sorted(ranks) for _, reduction in own for ranks in reduction.ranks]
        found.append({"gathers": sorted(set(gathers)), "reductions": reductions, "ranks": ranks})
    return found


def memory_of_the_group(rank: Rank, case: TrainingCase) -> None:
    """Collectives of the user's own, which allocate for themselves, and then memory of the group for them."""
    stack = RecordedStack(rank, case)
    stack.tell("set_custom_all_gather", NotingGather())
    stack.tell("set_allocate_memory_from_process_group_for_comm", True)
