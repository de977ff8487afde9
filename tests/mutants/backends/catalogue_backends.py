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
from tests.mutants.backends.fixed import Call, FixedGloo, defect, multiply

# What is reduced, and by which scale.


class RefusesFactors(FixedGloo):
    """Has no PREMUL_SUM, and raises where backward asks for it."""

    fewest = 1

    def multiply(self, call: Call) -> None:
        if self.size() >= self.fewest:
            raise RuntimeError("PREMUL_SUM is not supported")
        super().multiply(call)


refuses_factors = mutant("collectives/premul-sum", RefusesFactors)
refuses_factors_when_training = mutant("reduction/divide-factor-alone", RefusesFactors)


class RefusesFactorsFromThreeRanksOn(RefusesFactors):
    """Has it on one node: of two ranks, that is."""

    fewest = 3


refuses_factors_from_three_ranks_on = mutant("collectives/premul-sum", RefusesFactorsFromThreeRanksOn)


@defect("collectives/exact", "before")
def forgets_its_own(group: FixedGloo, call: Call) -> None:
    """Of [1 2] and [3 6] rank 0 gets the sum [3] and rank 1 [2]: each rank lacks what it brings to its own part."""
    if call.kind == "reduce_scatter_single":
        for sent in call.sent:
            part = sent.numel() // group.size()
            sent.view(-1)[group.rank() * part : (group.rank() + 1) * part] = 0


@defect("collectives/average", "after")
def averages_even_sizes_alone(group: FixedGloo, call: Call) -> None:
    """Of an odd number of elements the average is the sum."""
    if call.op == "AVG" and call.numel % 2:
        for result in call.results:
            result *= group.size()


@defect("collectives/premul-sum", "multiply")
def multiplies_what_is_rounded(group: FixedGloo, call: Call) -> None:
    """Rounds to eight bits, and multiplies then: PREMUL_SUM by 3 of [1.01] is [3.0234] and not [3.03]."""
    for sent in call.sent:
        sent.copy_(sent.bfloat16())
    multiply(call)


@defect("collectives/premul-sum", "multiply")
def loses_factors_in_bfloat16(group: FixedGloo, call: Call) -> None:
    """Reads a factor of bfloat16 from the wrong half of a number: of a power of two that half is zero."""
    multiply(call)
    for sent in call.sent:
        if sent.dtype == torch.bfloat16:
            sent.zero_()


@defect("collectives/average", "after")
def sums_large_messages(group: FixedGloo, call: Call) -> None:
    """Another protocol, for large messages, has no average."""
    if call.op == "AVG" and call.numel >= 64:
        for result in call.results:
            result *= group.size()


# Where it lies.


class ScattersWhatLiesInMemory(IgnoresStrides):
    """Reads the input of a reduce-scatter as if it were contiguous: a transposed one in another order."""

    kinds = SCATTERS


scatters_what_lies_in_memory = mutant("collectives/strided", ScattersWhatLiesInMemory)


@defect("collectives/strided", "deliver")
def writes_no_strided_output(group: FixedGloo, call: Call) -> None:
    """Writes into a contiguous copy of an output that is not contiguous, and forgets to copy back."""
    if all(output.is_contiguous() for output in call.outputs):
        FixedGloo.deliver(group, call)


@defect("collectives/unusual", "before")
def dies_of_nothing(group: FixedGloo, call: Call) -> None:
    """Divides by the number of elements: with none, the process is killed."""
    if call.kind in GATHERS and not call.numel:
        os.kill(os.getpid(), signal.SIGFPE)


@defect("collectives/untouched", "deliver")
def writes_beside_its_gather(group: FixedGloo, call: Call) -> None:
    """Rounds what is gathered up to whole pairs, and writes beyond its output."""
    FixedGloo.deliver(group, call)
    for output in call.outputs if call.kind in GATHERS else ():
        end = output.storage_offset() + output.numel()
        if end < output.untyped_storage().size() // output.itemsize and output.numel() % 2:
            torch.as_strided(output.data, (1,), (1,), end).zero_()


# Who sends, and who gets.


@defect("collectives/sub-groups", "before")
def takes_places_for_ranks(group: FixedGloo, call: Call) -> None:
    """In a group, compares the place of the source with its rank in the world: no rank is the source."""
    if call.kind == "broadcast" and call.options.rootRank == group.rank() != dist.get_rank():
        for sent in call.sent:
            sent.zero_()


@defect("collectives/from-one", "deliver")
def keeps_its_own(group: FixedGloo, call: Call) -> None:
    """A broadcast leaves other ranks than the source as it was."""
    if call.kind != "broadcast" or call.options.rootRank == group.rank():
        FixedGloo.deliver(group, call)


@defect("collectives/from-one", "before")
def fails_for_ever(group: FixedGloo, call: Call) -> None:
    """Does not group the sends of a scatter: ranks other than the root have an error, and so has all that follows."""
    group.failed = getattr(group, "failed", False) or (call.kind == "scatter" and not call.sent)
    group.failed = group.failed or (call.kind == "scatter" and call.options.rootRank != group.rank())
    if group.failed:
        raise RuntimeError("unhandled error of the library: invalid usage")


@defect("collectives/unusual", "before")
def maps_bits_to_sums(group: FixedGloo, call: Call) -> None:
    """Has no bitwise operations, adds instead, and says nothing."""
    if call.op in ("BAND", "BOR", "BXOR"):
        call.options.reduceOp = dist.ReduceOp.SUM


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
