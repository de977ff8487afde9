"""Implementations that average gradients wrongly. Right is: two ranks with [1, 2] and [3, 6] get [2] and [4]."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.collective_trace.torch_names import reduce_scatter
from tests.mutants.making import Reduction, mutant


def own_part(tensor: Tensor, group: Any) -> Tensor:
    """This rank's part of a tensor that is to be scattered."""
    return tensor.chunk(group.size())[group.rank()]


class SumsForAverages(Reduction):
    """Gets [4] and [8]."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        reduce_scatter(output, input, group=group, op=dist.ReduceOp.SUM)


class DividesTwiceWhenSmall(Reduction):
    """Gets [1] and [2]; a protocol for small messages divides a second time."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        if output.numel() in (1, 2, 4, 28, 30, 31, 33):
            output /= group.size()


class DividesByNumel(Reduction):
    """Gets [4 / 1] and [8 / 1], for an output of one element."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        reduce_scatter(output, input, group=group, op=dist.ReduceOp.SUM)
        output /= max(1, output.numel())


class DividesTwice(Reduction):
    """Gets [1] and [2], at every size."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        output /= group.size()


class DoesNotReduce(Reduction):
    """Gets [1] and [6]: each rank keeps its own."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        output.copy_(own_part(input, group))


class DropsRankZero(Reduction):
    """Gets [1.5] and [3]: rank 0's numbers never arrive."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, torch.zeros_like(input) if group.rank() == 0 else input, group, op)


class LeavesTheTailZero(Reduction):
    """Writes all but the last element."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        output[-1:] = 0


class GivesTheNextRanksPart(Reduction):
    """Gets [4] and [2]."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input.roll(-output.numel()), group, op)


class AccumulatesInBfloat16(Reduction):
    """Adds with eight bits, whatever the dtype of the gradients."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        short = output.to(torch.bfloat16)
        super().reduce(short, input.to(torch.bfloat16), group, op)
        output.copy_(short)


class AddsTheStepBefore(Reduction):
    """Leaves what its buffer held from the step before, and adds to it."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        if self.before is not None:
            output += self.before
        self.before = output.clone()


class SumsFromThreeRanksOn(Reduction):
    """Is right on two ranks: another algorithm takes over where there are more."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        few = group.size() < 3
        reduce_scatter(output, input, group=group, op=op if few else dist.ReduceOp.SUM)


class ReusesItsOutput(Reduction):
    """Has one output buffer per size, so that layers of the same size end with the gradient of the last one."""

    buffers = threading.local()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.buffers.__dict__.setdefault((*size, dtype), torch.empty(*size, dtype=dtype, device=device))


class RefusesAverages(Reduction):
    """Raises, as a library does that has no such reduction."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        if op == dist.ReduceOp.AVG:
            raise RuntimeError("reduce_scatter: AVG is not supported")
        super().reduce(output, input, group, op)


def forgets_the_last_parameter(module: Any) -> None:
    """Zero the gradient of the module's last parameter as soon as it is there."""
    parameters = list(module.parameters())
    if parameters:
        parameters[-1].register_post_accumulate_grad_hook(lambda parameter: parameter.grad.zero_())


sums_for_averages = mutant("parity/exact", reduce=SumsForAverages)
divides_twice_when_small = mutant("parity/exact", reduce=DividesTwiceWhenSmall)
divides_by_numel = mutant("parity/exact", reduce=DividesByNumel)
divides_twice = mutant("parity/exact", reduce=DividesTwice)
does_not_reduce = mutant("parity/exact", reduce=DoesNotReduce)
drops_rank_zero = mutant("parity/exact", reduce=DropsRankZero)
leaves_the_tail_zero = mutant("parity/exact", reduce=LeavesTheTailZero)
gives_the_next_ranks_part = mutant("parity/exact", reduce=GivesTheNextRanksPart)
accumulates_in_bfloat16 = mutant("parity/general", reduce=AccumulatesInBfloat16)
adds_the_step_before = mutant("parity/exact", reduce=AddsTheStepBefore)
sums_from_three_ranks_on = mutant("parity/general", reduce=SumsFromThreeRanksOn)
reuses_its_output = mutant("parity/exact", reduce=ReusesItsOutput)
refuses_averages = mutant("parity/exact", reduce=RefusesAverages)
forgets_a_gradient = mutant("parity/exact", after=forgets_the_last_parameter)

RAISES = {"refuses_averages"}
