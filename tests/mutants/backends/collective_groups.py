"""Backends that are right on all ranks, and not in groups, for tools above FSDP, or on tensors out of the common."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from tests.mutants.backends.backends import mutant
from tests.mutants.backends.collective_chapter import GATHERS, turned
from tests.mutants.backends.fixed import Call, FixedGloo

# Groups.


class PlacesByRankInTheWorld(FixedGloo):
    """Is right in a group that begins with rank 0."""

    def after(self, call: Call) -> None:
        if call.kind in GATHERS:
            turned(call, self.size(), dist.get_rank() - self.rank())


class SharesBuffersAmongGroups(FixedGloo):
    """The n-th call of one group has its results where the n-th call of another has them."""

    shared: ClassVar[dict[tuple[Any, ...], list[Tensor]]] = {}

    def perform(self, call: Call, arguments: list[Any]) -> Any:
        work = super().perform(call, arguments)
        work.wait()
        self.times = getattr(self, "times", 0) + 1
        call.note = (self.times, *((result.dtype, result.shape) for result in call.results))
        self.shared[call.note] = [result.clone() for result in call.results]
        return work

    def after(self, call: Call) -> None:
        call.results = self.shared[call.note]


class Open(dist._Work):
    """Nothing to wait for."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class HoldsNobody(FixedGloo):
    """A barrier that is open."""

    def barrier(self, *_: Any, **__: Any) -> Any:
        return Open()


class PassesWithoutTheFirstRank(FixedGloo):
    """A barrier that is open in a group without rank 0 of the world, which others would ask."""

    def barrier(self, *arguments: Any, **options: Any) -> Any:
        first = 0 in dist.get_process_group_ranks(self)
        return self.inner.barrier(*arguments, **options) if first else Open()


# Tools above.


class SpoilsBytes(FixedGloo):
    """Long messages of bytes arrive with their middle changed."""

    def after(self, call: Call) -> None:
        for result in call.results if call.kind in ("broadcast", "all_gather", "scatter") else ():
            if result.dtype == torch.uint8 and result.numel() > 64:
                result[result.numel() // 2 :] = 0


class HasNoCoalescedForms(FixedGloo):
    """Trains, and cannot make a DTensor whole."""

    def before(self, call: Call) -> None:
        if "coalesced" in call.name:
            raise AttributeError(f"this group has no {call.name}")


class CoalescesToTheNextRank(FixedGloo):
    """Is right in the forms that FSDP uses, and gives other parts in those that a DTensor uses."""

    def after(self, call: Call) -> None:
        if "coalesced" in call.name and call.kind == "all_gather_single":
            turned(call, self.size(), 1)


# What may be refused.


class RefusesOnOneRank(FixedGloo):
    """Rank 0 does not want empty tensors; the others do not mind."""

    def after(self, call: Call) -> None:
        if call.kind == "all_gather_single" and not call.numel and self.rank() == 0:
            raise ValueError("empty tensors are not supported")


class IgnoresStrides(FixedGloo):
    """Takes as many numbers as there are from where a tensor begins."""

    kinds: tuple[str, ...] = GATHERS

    def before(self, call: Call) -> None:
        for sent, input in zip(call.sent, call.inputs, strict=True):
            if call.kind in self.kinds:
                sent.copy_(torch.as_strided(input.data, sent.shape, sent.stride(), input.storage_offset()))


class IgnoresStridesInSums(IgnoresStrides):
    """The same, elsewhere."""

    kinds = ("all_reduce", "scatter", "reduce_scatter")


class IgnoresStridesInAllReduce(IgnoresStrides):
    """The same, there alone."""

    kinds = ("all_reduce",)


places_by_rank_in_the_world = mutant("collectives/sub-groups", PlacesByRankInTheWorld)
shares_buffers_among_groups = mutant("collectives/two-groups", SharesBuffersAmongGroups)
holds_nobody = mutant("collectives/barrier", HoldsNobody)
passes_without_the_first_rank = mutant("collectives/barrier", PassesWithoutTheFirstRank)
spoils_bytes = mutant("collectives/objects", SpoilsBytes)
has_no_coalesced_forms = mutant("collectives/dtensor", HasNoCoalescedForms)
coalesces_to_the_next_rank = mutant("collectives/dtensor", CoalescesToTheNextRank)
refuses_on_one_rank = mutant("collectives/unusual", RefusesOnOneRank)
ignores_strides = mutant("collectives/strided", IgnoresStrides)
ignores_strides_in_sums = mutant("collectives/strided-others", IgnoresStridesInSums)
ignores_strides_in_all_reduce = mutant("collectives/strided-others", IgnoresStridesInAllReduce)

RAISES = {"spoils_bytes", "has_no_coalesced_forms"}
