"""Implementations that average gradients wrongly. Right is: two ranks with [1, 2] and [3, 6] get [2] and [4]."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.mutants.making import Reduction, defect, mutant, reduced, reduced_then, reducing, summed, sums


def own_part(tensor: Tensor, group: Any) -> Tensor:
    """This rank's part of a tensor that is to be scattered."""
    return tensor.chunk(group.size())[group.rank()]


class AddsTheStepBefore(Reduction):
    """Leaves what its buffer held from the step before, and adds to it."""

    before: Tensor | None = None

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        reduced(output, input, group, op)
        if self.before is not None:
            output += self.before
        self.before = output.clone()


class ReusesItsOutput(Reduction):
    """Has one output buffer per size, so that layers of the same size end with the gradient of the last one."""

    buffers = threading.local()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.buffers.__dict__.setdefault((*size, dtype), torch.empty(*size, dtype=dtype, device=device))


SMALL = (1, 2, 4, 28, 30, 31, 33)

sums_for_averages = mutant("parity/exact", sums)
#: Gets [1] and [2]; a protocol for small messages divides a second time.
divides_twice_when_small = mutant(
    "parity/exact", reduced_then(lambda output, group: output.div_(group.size() if output.numel() in SMALL else 1))
)


@defect("parity/exact", reducing)
def divides_by_numel(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """Gets [4 / 1] and [8 / 1], for an output of one element."""
    summed(output, input, group, op)
    output /= max(1, output.numel())


#: Gets [1] and [2], at every size.
divides_twice = mutant("parity/exact", reduced_then(lambda output, group: output.div_(group.size())))
#: Gets [1] and [6]: each rank keeps its own.
does_not_reduce = mutant(
    "parity/exact", reducing(lambda output, input, group, op: output.copy_(own_part(input, group)))
)


@defect("parity/exact", reducing)
def drops_rank_zero(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """Gets [1.5] and [3]: rank 0's numbers never arrive."""
    reduced(output, torch.zeros_like(input) if group.rank() == 0 else input, group, op)


#: Writes all but the last element.
leaves_the_tail_zero = mutant("parity/exact", reduced_then(lambda output, group: output[-1:].zero_()))


@defect("parity/exact", reducing)
def gives_the_next_ranks_part(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """Gets [4] and [2]."""
    reduced(output, input.roll(-output.numel()), group, op)


@defect("parity/general", reducing)
def accumulates_in_bfloat16(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """Adds with eight bits, whatever the dtype of the gradients."""
    short = output.to(torch.bfloat16)
    reduced(short, input.to(torch.bfloat16), group, op)
    output.copy_(short)


adds_the_step_before = mutant("parity/exact", reduce=AddsTheStepBefore)


@defect("parity/general", reducing)
def sums_from_three_ranks_on(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """Is right on two ranks: another algorithm takes over where there are more."""
    (reduced if group.size() < 3 else summed)(output, input, group, op)


reuses_its_output = mutant("parity/exact", reduce=ReusesItsOutput)


@defect("parity/exact", reducing)
def refuses_averages(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
    """Raises, as a library does that has no such reduction."""
    if op == dist.ReduceOp.AVG:
        raise RuntimeError("reduce_scatter: AVG is not supported")
    reduced(output, input, group, op)


@defect("parity/exact")
def forgets_a_gradient(module: Any) -> None:
    """Zero the gradient of the module's last parameter as soon as it is there."""
    for last in list(module.parameters())[-1:]:
        last.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.zero_())


RAISES = {"refuses_averages"}
