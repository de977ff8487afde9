"""What runs on ranks to learn whether collectives run beside compute: times of passes with and without delays.

A rank whose six gathers of 4 ms are all behind 8 ms of compute, but for the first, tells::

    {"collective": 4.0, "compute": 8.0, "together": 8.1, "quiet": 49.0, "delayed": 53.2, "made": 6}
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.worlds.rank import Rank
from suites.communication.overlap import LONGER, OverlapCase
from suites.communication.overlap_delays import (
    FEWEST,
    Clock,
    DelayedGather,
    DelayedHook,
    DelayedReduction,
    Work,
    work_of,
)
from suites.communication.played import mark
from suites.kit.cases import TrainingCase
from suites.kit.programs import sharded

Act = Callable[[], Any]
#: Passes of each kind before any is measured, and how many are.
WARM, REPEATS = 2, 5
#: How many sums come before a step that is to come late.
LATE = 100


class Slow(nn.Module):
    """A layer that takes as long as its work, and in backward twice that; the work begins once parameters are there."""

    def __init__(self, layer: nn.Module, work: Work) -> None:
        super().__init__()
        self.layer, self.work = layer, work

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, dim)`` to the same."""
        y: Tensor = self.layer(x)
        self.work()
        return mark(y, self._twice)

    def _twice(self) -> None:
        self.work()
        self.work()


class Bench:
    """A sharded net of slow blocks with collectives that can be delayed, and a clock."""

    def __init__(self, rank: Rank, case: OverlapCase) -> None:
        self.clock = Clock(rank.device)
        self.collective = work_of(self.clock, rank.device, case.collective)
        self.compute = work_of(self.clock, rank.device, LONGER * case.collective)
        self.batch = case.batch(rank.number).to(rank.device)
        self._gather = DelayedGather(self.clock.streams, self.collective.another())
        self._reduction = DelayedReduction(self.clock.streams, self.collective.another())
        self._hook = DelayedHook(self.collective.another())
        self.net: Any = nn.Sequential(*(Slow(layer, self.compute) for layer in case.layers())).to(rank.device)
        self._delays = [self._gather, self._reduction, self._hook]
        self._spread(rank, case)

    def _spread(self, rank: Rank, case: OverlapCase) -> None:
        """Shard block by block; the root has no parameters of its own, and no collectives."""
        fully_shard = rank.implementation.fully_shard
        axes = (case.replicas, case.world_size // case.replicas)
        mesh = rank.mesh(axes, ("replicate", "shard")) if case.replicas > 1 else rank.mesh()
        blocks: list[Any] = list(self.net)
        for block in blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
            self._delay(block, is_replicated=case.replicas > 1)
        fully_shard(self.net, mesh=mesh)
        for block, later in pairwise(blocks) if case.ahead else ():
            block.set_modules_to_forward_prefetch([later])

    def _delay(self, block: Any, is_replicated: bool) -> None:
        """What can be made to take longer: gathers and reductions, or what follows all-reduces on their stream."""
        if is_replicated:
            block.set_all_reduce_hook(self._hook)
        else:
            block.set_custom_all_gather(self._gather)
            block.set_custom_reduce_scatter(self._reduction)

    def measured(self, act: Act, prepare: Act = lambda: None) -> dict[str, float | int]:
        """Times of ``act``, before each of which something is prepared that no delay is in."""
        quiet, delayed = [], []
        for _ in range(WARM + REPEATS):
            quiet.append(self._one(act, prepare, is_delayed=False))
            delayed.append(self._one(act, prepare, is_delayed=True))
        calls = sum(one.calls for one in self._delays)
        passes = {"quiet": median(quiet[WARM:]), "delayed": median(delayed[WARM:])}
        return {**self._by_hand(), **passes, "made": calls // (WARM + REPEATS)}

    def _one(self, act: Act, prepare: Act, is_delayed: bool) -> float:
        prepare()
        self._set_delayed(is_delayed)
        dist.barrier()
        took = self.clock.milliseconds(act)
        self._set_delayed(False)
        return took

    def _set_delayed(self, is_delayed: bool) -> None:
        for one in self._delays:
            one.is_delayed = is_delayed

    def _by_hand(self) -> dict[str, float | int]:
        """A collective's work and the compute beside it: each alone, and on two streams."""
        alone = {"collective": self.clock.usually(self.collective), "compute": self.clock.usually(self.compute)}
        return {**alone, "together": self.clock.usually(self._side_by_side)}

    def _side_by_side(self) -> None:
        streams = self.clock.streams
        here, beside = streams.current_stream(), streams.Stream()
        beside.wait_stream(here)
        with streams.stream(beside):
            self.collective()
        self.compute()
        here.wait_stream(beside)


def forward(rank: Rank, case: OverlapCase) -> dict[str, float | int]:
    """A forward without gradients: gathers are all that ranks say."""
    bench = Bench(rank, case)
    with torch.no_grad():
        return bench.measured(lambda: bench.net(bench.batch))


def backward(rank: Rank, case: OverlapCase) -> dict[str, float | int]:
    """A backward: gathers, and reductions."""
    bench = Bench(rank, case)
    losses: list[Tensor] = []
    return bench.measured(lambda: losses.pop().backward(), lambda: losses.append(bench.net(bench.batch).sum()))


def losses_after_steps(rank: Rank, case: TrainingCase) -> list[dict[str, Tensor]]:
    """The loss of each step that comes late; the root is given an event after all but the second, and no host waits."""
    net = sharded(rank, case)
    optimizer, late = case.optimizer(net.parameters()), Work(rank.device, FEWEST, LATE)
    losses = []
    for step, batch in enumerate([case.inputs(step, rank.number).to(rank.device) for step in range(case.steps)]):
        losses.append(case.loss(net(batch), step, rank.number))
        losses[-1].backward()
        late()
        optimizer.step()
        if step != 1:
            stepped = torch.get_device_module(rank.device).Event()
            stepped.record()
            net.set_post_optim_event(stepped)
        optimizer.zero_grad()
    return [{"loss": loss.detach()} for loss in losses]


def after_step(rank: Rank, case: OverlapCase) -> dict[str, float | int]:
    """Work that has nothing to do with the net, then a forward; the root is given an event from before both."""
    bench = Bench(rank, case)

    def act() -> None:
        bench.net.set_post_optim_event(bench.clock.streams.current_stream().record_event())
        bench.compute()
        bench.net(bench.batch)

    with torch.no_grad():
        return bench.measured(act)
