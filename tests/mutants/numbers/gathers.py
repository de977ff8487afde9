"""Implementations that put parameters together wrongly. Right is: ranks that hold [1] and [2] both get [1, 2]."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from harness.collective_trace.torch_names import all_gather
from tests.mutants.making import Change, Gather, defect, gathered, gathered_then, gathering, mutant

#: Gets [1, 1] on rank 0 and [2, 2] on rank 1.
own_shards = gathering(lambda output, input, group: output.copy_(input.repeat(group.size())))


class StaleGather(Gather):
    """Gets what was gathered the time before: parameters as they were one step ago."""

    before: Tensor | None = None

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        gathered(output, input, group)
        now = output.clone()
        if self.before is not None:
            output.copy_(self.before)
        self.before = now


class GathersOnce(StaleGather):
    """Gathers once, and gives that for ever."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        if self.before is None:
            super().gather(output, input, group)
        else:
            output.copy_(self.before)


def now_and_then(spoil: Callable[[Tensor], object]) -> Change:
    """A change to each module: every third message goes wrong, as it does in a race."""

    def change(module: Any) -> None:
        calls = itertools.count(1)
        gathered_then(lambda output, group: spoil(output) if next(calls) % 3 == 0 else None)(module)

    return change


class NeverWaits(Gather):
    """Uses the result before it is there. Buffers begin as NaN, so that what was there before shows."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(tuple(size), torch.nan, dtype=dtype, device=device)

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        all_gather(output, input, group=group, async_op=True)


#: Gets [2, 1].
reverses_ranks = mutant(
    "parity/exact", gathered_then(lambda output, group: output.copy_(torch.cat(output.chunk(group.size())[::-1])))
)
own_shard_everywhere = mutant("parity/exact", own_shards)
#: Gets [1, 1] on both.
rank_zero_everywhere = mutant(
    "parity/exact",
    gathered_then(lambda output, group: output.copy_(output.chunk(group.size())[0].repeat(group.size()))),
)
stale_gather = mutant("parity/exact", gather=StaleGather)
gathers_once = mutant("parity/exact", gather=GathersOnce)
#: Loses a message now and then.
zero_now_and_then = mutant("parity/exact", now_and_then(lambda output: output.zero_()))


@defect("parity/exact", gathering)
def loses_the_last_odd_element(output: Tensor, input: Tensor, group: Any) -> None:
    """Copies two elements at a time: an odd one at the end stays behind."""
    source = input.clone()
    if source.numel() % 2:
        source[-1] = 0
    gathered(output, source, group)


@defect("parity/general", gathering)
def gathers_in_bfloat16(output: Tensor, input: Tensor, group: Any) -> None:
    """Sends eight bits of each number."""
    short = output.to(torch.bfloat16)
    gathered(short, input.to(torch.bfloat16), group)
    output.copy_(short)


never_waits = mutant("parity/exact", gather=NeverWaits)


@defect("parity/exact", gathering)
def sends_too_much(output: Tensor, input: Tensor, group: Any) -> None:
    """Sends a part of the wrong length on the last rank."""
    if group.rank() == group.size() - 1:
        output, input = output.repeat(2), input.repeat(2)
    gathered(output, input, group)


@defect("parity/exact")
@torch.no_grad()
def drops_uneven_rows(module: Any) -> None:
    """Five rows on two ranks: 5 // 2 rows each, and the fifth is gone (here: zero)."""
    for parameter in module.parameters():
        rows, ranks = parameter.size(0), parameter.device_mesh.size()
        first = -(-rows // ranks) * parameter.device_mesh.get_local_rank()
        kept = max(0, rows // ranks * ranks - first)
        parameter.to_local()[kept:] = 0


@defect("parity/exact")
def stays_unsharded(module: Any) -> None:
    """Keep full parameters after forward and after backward."""
    module.set_reshard_after_forward(False)
    module.set_reshard_after_backward(False)


RAISES = {"sends_too_much"}
