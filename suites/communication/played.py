"""Stacks on ranks: what is done to them as data, with settings as actions, and what each action has ranks say.

The root alone is told to free its parameters after forward, block 0 twice its room for inputs of reductions::

    set reshard_after_forward True in root, set reduce_scatter_max_input_buffers 2 in 0, forward, reshard, backward
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.programs import ShardedStack
from suites.oracle.sharded import State, played_on


@st.composite
def training_after(
    draw: st.DrawFn,
    cases: st.SearchStrategy[TrainingCase],
    acts: Callable[[TrainingCase], st.SearchStrategy[Iterable[str]]],
) -> TrainingCase:
    """Any of the cases, with actions before its training that are drawn for it."""
    case = draw(cases)
    return replace(case, acts=(*draw(acts(case)), *case.actions))


def each_group(case: TrainingCase) -> list[str]:
    """What settings call the sharded modules, the root last."""
    return [*map(str, case.sharded), "root"]


class RecordedStack(ShardedStack):
    """The stack of a case, on one rank, that notes what each action communicates."""

    def act(self, action: str) -> State:
        """Do an action, and note what it communicates."""
        with self.rank.collectives() as self.entries:
            return super().act(action)

    def do(self, action: str, shown: Any) -> State:
        """Do an action; what can be seen then, the collectives that it issued, and where gradients lie."""
        seen = super().do(action, shown)
        devices = {str(parameter.grad.device) for parameter in self.held.values() if parameter.grad is not None}
        return {**seen, "collectives": self.entries, "devices": sorted(devices)}


#: A program: do all actions; what could be seen after each.
play = RecordedStack.play


def play_recomputed(rank: Rank, case: TrainingCase) -> list[State]:
    """The same where blocks, checkpointed and then sharded, run again in backward."""
    net = case.build()
    for block in net:
        rank.implementation.checkpoint(block)
    return played_on(RecordedStack(rank, case, net=net))


class _Mark(torch.autograd.Function):
    """The identity, which calls back when its gradient comes: before the layer whose output it was has its own."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, note: Callable[[], None]) -> Tensor:
        """The same."""
        ctx.note = note
        return y.clone()  # a view would be warned of

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The same."""
        ctx.note()
        return gradient, None


def mark(y: Tensor, note: Callable[[], None]) -> Tensor:
    """The same numbers; ``note()`` is called when their gradient has come, after every hook on ``y``."""
    marked: Tensor = _Mark.apply(y, note)  # type: ignore[no-untyped-call]
    return marked
