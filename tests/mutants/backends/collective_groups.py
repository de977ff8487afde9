"""Backends that are right on all ranks, and not in groups, for tools above FSDP, or on tensors out of the common."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from tests.mutants.backends.backends import mutant
from tests.mutants.backends.collective_chapter import GATHERS, turned
from tests.mutants.backends.fixed import Call, FixedGloo, defect

# Groups.


@defect("collectives/sub-groups", "after")
def places_by_rank_in_the_world(group: FixedGloo, call: Call) -> None:
    """Is right in a group that begins with rank 0."""
    if call.kind in GATHERS:
        turned(call, group.size(), dist.get_rank() - group.rank())


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


shares_buffers_among_groups = mutant("collectives/two-groups", SharesBuffersAmongGroups)


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


holds_nobody = mutant("collectives/barrier", HoldsNobody)


class PassesWithoutTheFirstRank(FixedGloo):
    """A barrier that is open in a group without rank 0 of the world, which others would ask."""

    def barrier(self, *arguments: Any, **options: Any) -> Any:
        first = 0 in dist.get_process_group_ranks(self)
        return self.inner.barrier(*arguments, **options) if first else Open()


passes_without_the_first_rank = mutant("collectives/barrier", PassesWithoutTheFirstRank)


class PassesFromTheThirdOn(FixedGloo):
    """A barrier that counts who has come, and starts again from nothing too rarely."""

    def barrier(self, *arguments: Any, **options: Any) -> Any:
        self.barriers = getattr(self, "barriers", 0) + 1
        return self.inner.barrier(*arguments, **options) if self.barriers < 3 else Open()


passes_from_the_third_on = mutant("collectives/barrier", PassesFromTheThirdOn)


class TakesItsFirstSize(FixedGloo):
    """Averages over as many ranks as the first group of its name had in this process."""

    sizes: ClassVar[dict[str, int]] = {}

    def after(self, call: Call) -> None:
        first = self.sizes.setdefault(self.group_name, self.size())
        for result in call.results if call.op == "AVG" else ():
            result *= self.size() / first


takes_its_first_size = mutant("collectives/restarted", TakesItsFirstSize)


# Tools above.


class SendsAPage(FixedGloo):
    """Of what one rank sends to another, the first four KiB alone arrive."""

    def send(self, tensors: list[Tensor], *rest: Any) -> Any:
        for tensor in tensors:
            tensor.view(-1)[4096 // tensor.element_size() :] = 0
        return self.inner.send(tensors, *rest)


sends_a_page = mutant("collectives/ring", SendsAPage)


@defect("collectives/objects", "after")
def spoils_bytes(group: FixedGloo, call: Call) -> None:
    """Long messages of bytes arrive with their middle changed."""
    for result in call.results if call.kind in ("broadcast", "all_gather", "scatter") else ():
        if result.dtype == torch.uint8 and result.numel() > 64:
            result[result.numel() // 2 :] = 0


@defect("collectives/dtensor", "before")
def has_no_coalesced_forms(group: FixedGloo, call: Call) -> None:
    """Trains, and cannot make a DTensor whole."""
    if "coalesced" in call.name:
        raise AttributeError(f"this group has no {call.name}")


@defect("collectives/dtensor", "after")
def coalesces_to_the_next_rank(group: FixedGloo, call: Call) -> None:
    """Is right in the forms that FSDP uses, and gives other parts in those that a DTensor uses."""
    if "coalesced" in call.name and call.kind == "all_gather_single":
        turned(call, group.size(), 1)


# What may be refused.


@defect("collectives/unusual", "after")
def refuses_on_one_rank(group: FixedGloo, call: Call) -> None:
    """Rank 0 does not want empty tensors; the others do not mind."""
    if call.kind == "all_gather_single" and not call.numel and group.rank() == 0:
        raise ValueError("empty tensors are not supported")


class IgnoresStrides(FixedGloo):
    """Takes as many numbers as there are from where a tensor begins."""

    kinds: tuple[str, ...] = GATHERS

    def before(self, call: Call) -> None:
        for sent, input in zip(call.sent, call.inputs, strict=True):
            if call.kind in self.kinds:
                sent.copy_(torch.as_strided(input.data, sent.shape, sent.stride(), input.storage_offset()))


ignores_strides = mutant("collectives/strided", IgnoresStrides)


class IgnoresStridesInSums(IgnoresStrides):
    """The same, elsewhere."""

    kinds = ("all_reduce", "scatter", "reduce_scatter")


ignores_strides_in_sums = mutant("collectives/strided-others", IgnoresStridesInSums)


class IgnoresStridesInAllReduce(IgnoresStrides):
    """The same, there alone."""

    kinds = ("all_reduce",)


ignores_strides_in_all_reduce = mutant("collectives/strided-others", IgnoresStridesInAllReduce)


# Memory.


class KnowsMemoryByItsAddress(FixedGloo):
    """A broadcast fills as much as it did first at an address."""

    known: ClassVar[dict[int, int]] = {}

    def broadcast(self, tensors: list[Tensor], *options: Any) -> Any:
        flat = tensors[0].view(-1)
        return super().broadcast([flat[: self.known.setdefault(flat.data_ptr(), flat.numel())]], *options)


class TakesOneMemoryForInPlace(FixedGloo):
    """Where input and output lie in one memory, the own part is not copied."""

    def all_gather_single(self, output: Tensor, input: Tensor, *options: Any) -> Any:
        own = output.chunk(self.size())[self.rank()]
        before, is_alike = own.clone(), own.untyped_storage().data_ptr() == input.untyped_storage().data_ptr()
        work = self.inner.all_gather_single(output, input, *options)
        work.wait()
        if is_alike and own.data_ptr() != input.data_ptr():
            own.copy_(before)
        return work

    _allgather_base = all_gather_single


class Writing(dist._Work):
    """Writes its result at every wait."""

    def __init__(self, work: Any, output: Tensor) -> None:
        super().__init__()
        self._work, self._output, self._result = work, output, None

    def wait(self, timeout: Any = None) -> bool:
        self._work.wait()
        self._result = self._output.clone() if self._result is None else self._result
        self._output.copy_(self._result)
        return True

    def is_completed(self) -> bool:
        return self._result is not None


class WritesAtEveryWait(FixedGloo):
    """An all-reduce's result is written whenever its work is waited for."""

    def allreduce(self, tensors: list[Tensor], *options: Any) -> Any:
        return Writing(super().allreduce(tensors, *options), tensors[0])


knows_memory_by_its_address = mutant("collectives/growing", KnowsMemoryByItsAddress)
takes_one_memory_for_in_place = mutant("collectives/side-by-side", TakesOneMemoryForInPlace)
writes_at_every_wait = mutant("collectives/waited-again", WritesAtEveryWait)

RAISES = {"spoils_bytes", "has_no_coalesced_forms"}
