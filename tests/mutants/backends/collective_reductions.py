"""Backends that reduce wrongly in one way: by another operation, scale, order or precision."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.mutants.backends.backends import mutant
from tests.mutants.backends.fixed import Call, FixedGloo, defect

SCATTERS = ("reduce_scatter_single", "reduce_scatter")
REDUCING = (*SCATTERS, "all_reduce")


@defect("collectives/exact", "before")
def takes_sums_for_maxima(group: FixedGloo, call: Call) -> None:
    """Maps an operation that it does not have to one that it has."""
    if call.op == "MAX":
        call.options.reduceOp = dist.ReduceOp.SUM


@defect("collectives/exact", "before")
def loses_the_first_rank(group: FixedGloo, call: Call) -> None:
    """Of [1] and [2] the sum is [2]."""
    if call.kind == "reduce_scatter_single" and group.rank() == 0:
        for sent in call.sent:
            sent.zero_()


@defect("collectives/sum", "before")
def adds_in_bfloat16(group: FixedGloo, call: Call) -> None:
    """Rounds to eight bits what it adds."""
    for sent in call.sent if call.kind in REDUCING else ():
        if sent.is_floating_point():
            sent.copy_(sent.bfloat16())


@defect("collectives/infinite", "after")
def saturates_in_half_precision(group: FixedGloo, call: Call) -> None:
    """What overflows in float16 comes out as the largest number there is."""
    for result in call.results if call.kind in REDUCING else ():
        if result.dtype == torch.float16:
            result.copy_(result.clamp(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max))


class Scales(FixedGloo):
    """Averages are off by a factor that depends on its options."""

    def factor(self, call: Call) -> float:
        return 1.0

    def after(self, call: Call) -> None:
        if call.op == "AVG":
            for result in call.results:
                result *= self.factor(call)


class SumsForAverages(Scales):
    """Of [1] and [3] the average is [4]."""

    def factor(self, call: Call) -> float:
        return float(self.size())


sums_for_averages = mutant("collectives/average", SumsForAverages)


class SumsFromThreeRanksOn(Scales):
    """Is right on two ranks: another algorithm takes over where there are more."""

    def factor(self, call: Call) -> float:
        return float(self.size()) if self.size() > 2 else 1.0


sums_from_three_ranks_on = mutant("collectives/average", SumsFromThreeRanksOn)


class DividesTwiceWhenSmall(Scales):
    """Of [1] and [3] the average is [1]; of most other sizes it is right."""

    def factor(self, call: Call) -> float:
        return 1 / self.size() if call.numel in (1, 2, 4, 28, 30, 31, 33) else 1.0


divides_twice_when_small = mutant("collectives/average", DividesTwiceWhenSmall)


class DividesByNumel(Scales):
    """Right where there are as many numbers as ranks."""

    def factor(self, call: Call) -> float:
        return self.size() / max(1, call.numel)


divides_by_numel = mutant("collectives/average", DividesByNumel)


@defect("collectives/premul-sum", "before")
def ignores_factors(group: FixedGloo, call: Call) -> None:
    """PREMUL_SUM is SUM."""
    for sent, input in zip(call.sent, call.inputs, strict=True):
        if call.kind in REDUCING:
            sent.copy_(input)


@defect("collectives/premul-sum", "before")
def multiplies_its_input(group: FixedGloo, call: Call) -> None:
    """PREMUL_SUM multiplies the caller's tensors."""
    for sent, input in zip(call.sent, call.inputs, strict=True):
        if call.kind in SCATTERS:
            input.data.copy_(sent)


class AddsInAnOrder(FixedGloo):
    """Gathers, and adds in an order of its own."""

    def order(self) -> list[int]:
        return list(range(self.size()))

    def perform(self, call: Call, arguments: list[Any]) -> Any:
        if call.kind != "all_reduce" or call.op not in ("SUM", "AVG"):
            return super().perform(call, arguments)
        gathered = [torch.empty_like(call.sent[0]) for _ in range(self.size())]
        work = self.inner.allgather([gathered], [call.sent[0]])
        work.wait()
        total = sum((gathered[rank] for rank in self.order()), torch.zeros_like(gathered[0]))
        call.results[0].copy_(total / self.size() if call.op == "AVG" else total)
        return work


class AddsItsOwnFirst(AddsInAnOrder):
    """Ranks round differently."""

    def order(self) -> list[int]:
        return [(self.rank() + place) % self.size() for place in range(self.size())]


adds_its_own_first = mutant("collectives/replicas", AddsItsOwnFirst)


class AddsAsTheyCome(AddsInAnOrder):
    """All ranks round alike, and differently each time."""

    def order(self) -> list[int]:
        self.times = getattr(self, "times", 0) + 1
        return [(self.times + place) % self.size() for place in range(self.size())]


adds_as_they_come = mutant("collectives/repeatable", AddsAsTheyCome)


@defect("collectives/unusual", "before")
def sums_integers_for_averages(group: FixedGloo, call: Call) -> None:
    """Averages whole numbers without dividing, and says nothing."""
    if call.op == "AVG" and not call.sent[0].is_floating_point():
        call.options.reduceOp = dist.ReduceOp.SUM
