"""Implementations that put parameters together wrongly. Right is: ranks that hold [1] and [2] both get [1, 2]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.collective_trace.torch_names import all_gather
from tests.mutants.making import Gather, mutant


class ReversesRanks(Gather):
    """Gets [2, 1]."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        super().gather(output, input, group)
        output.copy_(torch.cat(output.chunk(group.size())[::-1]))


class OwnShardEverywhere(Gather):
    """Gets [1, 1] on rank 0 and [2, 2] on rank 1."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        output.copy_(input.repeat(group.size()))


class RankZeroEverywhere(Gather):
    """Gets [1, 1] on both."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        super().gather(output, input, group)
        output.copy_(output.chunk(group.size())[0].repeat(group.size()))


class StaleGather(Gather):
    """Gets what was gathered the time before: parameters as they were one step ago."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        super().gather(output, input, group)
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


class WrongNowAndThen(Gather):
    """Every third message goes wrong, as it does in a race."""

    def __init__(self) -> None:
        self.calls = 0

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        super().gather(output, input, group)
        self.calls += 1
        if self.calls % 3 == 0:
            self.spoil(output)

    def spoil(self, output: Tensor) -> None:
        raise NotImplementedError


class ZeroNowAndThen(WrongNowAndThen):
    """Loses a message."""

    def spoil(self, output: Tensor) -> None:
        output.zero_()


class LosesTheLastOddElement(Gather):
    """Copies two elements at a time: an odd one at the end stays behind."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        source = input.clone()
        if source.numel() % 2:
            source[-1] = 0
        super().gather(output, source, group)


class GathersInBfloat16(Gather):
    """Sends eight bits of each number."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        short = output.to(torch.bfloat16)
        super().gather(short, input.to(torch.bfloat16), group)
        output.copy_(short)


class NeverWaits(Gather):
    """Uses the result before it is there. Buffers begin as NaN, so that what was there before shows."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(tuple(size), torch.nan, dtype=dtype, device=device)

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        all_gather(output, input, group=group, async_op=True)


class SendsTooMuch(Gather):
    """Sends a part of the wrong length on the last rank."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        size = group.size()
        if group.rank() == size - 1:
            all_gather(output.repeat(2), input.repeat(2), group=group)
        else:
            super().gather(output, input, group)


def drops_rows_beyond_an_even_cut(module: Any) -> None:
    """Five rows on two ranks: 5 // 2 rows each, and the fifth is gone (here: zero)."""
    with torch.no_grad():
        for parameter in module.parameters():
            rows, ranks = parameter.size(0), parameter.device_mesh.size()
            first = -(-rows // ranks) * parameter.device_mesh.get_local_rank()
            kept = max(0, rows // ranks * ranks - first)
            parameter.to_local()[kept:] = 0


def never_reshards(module: Any) -> None:
    """Keep full parameters after forward and after backward."""
    module.set_reshard_after_forward(False)
    module.set_reshard_after_backward(False)


reverses_ranks = mutant("parity/exact", gather=ReversesRanks)
own_shard_everywhere = mutant("parity/exact", gather=OwnShardEverywhere)
rank_zero_everywhere = mutant("parity/exact", gather=RankZeroEverywhere)
stale_gather = mutant("parity/exact", gather=StaleGather)
gathers_once = mutant("parity/exact", gather=GathersOnce)
zero_now_and_then = mutant("parity/exact", gather=ZeroNowAndThen)
loses_the_last_odd_element = mutant("parity/exact", gather=LosesTheLastOddElement)
gathers_in_bfloat16 = mutant("parity/general", gather=GathersInBfloat16)
never_waits = mutant("parity/exact", gather=NeverWaits)
sends_too_much = mutant("parity/exact", gather=SendsTooMuch)
drops_uneven_rows = mutant("parity/exact", after=drops_rows_beyond_an_even_cut)
stays_unsharded = mutant("parity/exact", after=never_reshards)

RAISES = {"sends_too_much"}
