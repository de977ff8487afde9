"""Backends that reduce wrongly in one way: by another operation, scale, order or precision."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.mutants.backends.backends import mutant
from tests.mutants.backends.fixed import Call, FixedGloo

SCATTERS = ("reduce_scatter_single", "reduce_scatter")
REDUCING = (*SCATTERS, "all_reduce")


class TakesSumsForMaxima(FixedGloo):
    """Maps an operation that it does not have to one that it has."""

    def before(self, call: Call) -> None:
        if call.op == "MAX":
            call.options.reduceOp = dist.ReduceOp.SUM


class LosesTheFirstRank(FixedGloo):
    """Of [1] and [2] the sum is [2]."""

    def before(self, call: Call) -> None:
        if call.kind == "reduce_scatter_single" and self.rank() == 0:
            for sent in call.sent:
                sent.zero_()


class AddsInBfloat16(FixedGloo):
    """Rounds to eight bits what it adds."""

    def before(self, call: Call) -> None:
        for sent in call.sent if call.kind in REDUCING else ():
            if sent.is_floating_point():
                sent.copy_(sent.bfloat16())


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


class SumsFromThreeRanksOn(Scales):
    """Is right on two ranks: another algorithm takes over where there are more."""

    def factor(self, call: Call) -> float:
        return float(self.size()) if self.size() > 2 else 1.0


class DividesTwiceWhenSmall(Scales):
    """Of [1] and [3] the average is [1]; of most other sizes it is right."""

    def factor(self, call: Call) -> float:
        return 1 / self.size() if call.numel in (1, 2, 4, 28, 30, 31, 33) else 1.0


class DividesByNumel(Scales):
    """Right where there are as many numbers as ranks."""

    def factor(self, call: Call) -> float:
        return self.size() / max(1, call.numel)


class IgnoresFactors(FixedGloo):
    """PREMUL_SUM is SUM."""

    def before(self, call: Call) -> None:
        for sent, input in zip(call.sent, call.inputs, strict=True):
            if call.kind in REDUCING:
                sent.copy_(input)


class MultipliesItsInput(FixedGloo):
    """PREMUL_SUM multiplies the caller's tensors."""

    def before(self, call: Call) -> None:
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


class AddsAsTheyCome(AddsInAnOrder):
    """All ranks round alike, and differently each time."""

    def order(self) -> list[int]:
        self.times = getattr(self, "times", 0) + 1
        return [(self.times + place) % self.size() for place in range(self.size())]


class SumsIntegersForAverages(FixedGloo):
    """Averages whole numbers without dividing, and says nothing."""

    def before(self, call: Call) -> None:
        if call.op == "AVG" and not call.sent[0].is_floating_point():
            call.options.reduceOp = dist.ReduceOp.SUM


takes_sums_for_maxima = mutant("collectives/exact", TakesSumsForMaxima)
loses_the_first_rank = mutant("collectives/exact", LosesTheFirstRank)
adds_in_bfloat16 = mutant("collectives/sum", AddsInBfloat16)
sums_for_averages = mutant("collectives/average", SumsForAverages)
sums_from_three_ranks_on = mutant("collectives/average", SumsFromThreeRanksOn)
divides_twice_when_small = mutant("collectives/average", DividesTwiceWhenSmall)
divides_by_numel = mutant("collectives/average", DividesByNumel)
ignores_factors = mutant("collectives/premul-sum", IgnoresFactors)
multiplies_its_input = mutant("collectives/premul-sum", MultipliesItsInput)
adds_its_own_first = mutant("collectives/replicas", AddsItsOwnFirst)
adds_as_they_come = mutant("collectives/repeatable", AddsAsTheyCome)
sums_integers_for_averages = mutant("collectives/unusual", SumsIntegersForAverages)
