"""Backends with published defects of vendors' libraries: of one operation, size, layout, group or memory.

Right is what fixed gloo does: ranks with [1 2] and [3 6] that reduce-scatter an average get [2] and [4].
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from tests.mutants.backends.backends import mutant
from tests.mutants.backends.collective_chapter import GATHERS, SCATTERS
from tests.mutants.backends.collective_groups import IgnoresStrides
from tests.mutants.backends.fixed import Call, FixedGloo

# What is reduced, and by which scale.


class RefusesFactors(FixedGloo):
    """Has no PREMUL_SUM, and raises where backward asks for it."""

    fewest = 1

    def multiply(self, call: Call) -> None:
        if self.size() >= self.fewest:
            raise RuntimeError("PREMUL_SUM is not supported")
        super().multiply(call)


class RefusesFactorsFromThreeRanksOn(RefusesFactors):
    """Has it on one node: of two ranks, that is."""

    fewest = 3


class ForgetsItsOwn(FixedGloo):
    """Of [1 2] and [3 6] rank 0 gets the sum [3] and rank 1 [2]: each rank lacks what it brings to its own part."""

    def before(self, call: Call) -> None:
        if call.kind == "reduce_scatter_single":
            for sent in call.sent:
                part = sent.numel() // self.size()
                sent.view(-1)[self.rank() * part : (self.rank() + 1) * part] = 0


class AveragesEvenSizesAlone(FixedGloo):
    """Of an odd number of elements the average is the sum."""

    def after(self, call: Call) -> None:
        if call.op == "AVG" and call.numel % 2:
            for result in call.results:
                result *= self.size()


class MultipliesWhatIsRounded(FixedGloo):
    """Rounds to eight bits, and multiplies then: PREMUL_SUM by 3 of [1.01] is [3.0234] and not [3.03]."""

    def multiply(self, call: Call) -> None:
        for sent in call.sent:
            sent.copy_(sent.bfloat16())
        super().multiply(call)


class LosesFactorsInBfloat16(FixedGloo):
    """Reads a factor of bfloat16 from the wrong half of a number: of a power of two that half is zero."""

    def multiply(self, call: Call) -> None:
        super().multiply(call)
        for sent in call.sent:
            if sent.dtype == torch.bfloat16:
                sent.zero_()


class SumsLargeMessages(FixedGloo):
    """Another protocol, for large messages, has no average."""

    def after(self, call: Call) -> None:
        if call.op == "AVG" and call.numel >= 64:
            for result in call.results:
                result *= self.size()


# Where it lies.


class ScattersWhatLiesInMemory(IgnoresStrides):
    """Reads the input of a reduce-scatter as if it were contiguous: a transposed one in another order."""

    kinds = SCATTERS


class WritesNoStridedOutput(FixedGloo):
    """Writes into a contiguous copy of an output that is not contiguous, and forgets to copy back."""

    def deliver(self, call: Call) -> None:
        if all(output.is_contiguous() for output in call.outputs):
            super().deliver(call)


class DiesOfNothing(FixedGloo):
    """Divides by the number of elements: with none, the process is killed."""

    def before(self, call: Call) -> None:
        if call.kind in GATHERS and not call.numel:
            os.kill(os.getpid(), signal.SIGFPE)


class WritesBesideItsGather(FixedGloo):
    """Rounds what is gathered up to whole pairs, and writes beyond its output."""

    def deliver(self, call: Call) -> None:
        super().deliver(call)
        for output in call.outputs if call.kind in GATHERS else ():
            end = output.storage_offset() + output.numel()
            if end < output.untyped_storage().size() // output.itemsize and output.numel() % 2:
                torch.as_strided(output.data, (1,), (1,), end).zero_()


# Who sends, and who gets.


class TakesPlacesForRanks(FixedGloo):
    """In a group, compares the place of the source with its rank in the world: no rank is the source."""

    def before(self, call: Call) -> None:
        if call.kind == "broadcast" and call.options.rootRank == self.rank() != dist.get_rank():
            for sent in call.sent:
                sent.zero_()


class KeepsItsOwn(FixedGloo):
    """A broadcast leaves other ranks than the source as it was."""

    def deliver(self, call: Call) -> None:
        if call.kind != "broadcast" or call.options.rootRank == self.rank():
            super().deliver(call)


class FailsForEver(FixedGloo):
    """Does not group the sends of a scatter: ranks other than the root have an error, and so has all that follows."""

    def before(self, call: Call) -> None:
        self.failed = getattr(self, "failed", False) or (call.kind == "scatter" and not call.sent)
        self.failed = self.failed or (call.kind == "scatter" and call.options.rootRank != self.rank())
        if self.failed:
            raise RuntimeError("unhandled error of the library: invalid usage")


class MapsBitsToSums(FixedGloo):
    """Has no bitwise operations, adds instead, and says nothing."""

    def before(self, call: Call) -> None:
        if call.op in ("BAND", "BOR", "BXOR"):
            call.options.reduceOp = dist.ReduceOp.SUM


refuses_factors = mutant("collectives/premul-sum", RefusesFactors)
refuses_factors_when_training = mutant("reduction/divide-factor-alone", RefusesFactors)
refuses_factors_from_three_ranks_on = mutant("collectives/premul-sum", RefusesFactorsFromThreeRanksOn)
forgets_its_own = mutant("collectives/exact", ForgetsItsOwn)
averages_even_sizes_alone = mutant("collectives/average", AveragesEvenSizesAlone)
multiplies_what_is_rounded = mutant("collectives/premul-sum", MultipliesWhatIsRounded)
loses_factors_in_bfloat16 = mutant("collectives/premul-sum", LosesFactorsInBfloat16)
sums_large_messages = mutant("collectives/average", SumsLargeMessages)
scatters_what_lies_in_memory = mutant("collectives/strided", ScattersWhatLiesInMemory)
writes_no_strided_output = mutant("collectives/strided", WritesNoStridedOutput)
dies_of_nothing = mutant("collectives/unusual", DiesOfNothing)
writes_beside_its_gather = mutant("collectives/untouched", WritesBesideItsGather)
takes_places_for_ranks = mutant("collectives/sub-groups", TakesPlacesForRanks)
keeps_its_own = mutant("collectives/from-one", KeepsItsOwn)
fails_for_ever = mutant("collectives/from-one", FailsForEver)
maps_bits_to_sums = mutant("collectives/unusual", MapsBitsToSums)

ALSO_KILLED_BY = {
    "refuses_factors_when_training": ("collectives/premul-sum",),
    "takes_places_for_ranks": ("tensor-parallel/",),  # which trains on groups of some ranks
}
RAISES = {
    "refuses_factors",
    "refuses_factors_when_training",
    "refuses_factors_from_three_ranks_on",
    "dies_of_nothing",
    "fails_for_ever",
}
