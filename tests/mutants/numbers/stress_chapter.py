"""Implementations that are right until something is in the way: a late rank, a collection, memory of NaN, a failure."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from tests.mutants.making import Gather, Reduction, mutant

#: Longer than a collective of a few numbers, shorter than a rank is late.
_PATIENCE = 0.003


class GivesUpOnLateRanks(Reduction):
    """Takes its own gradients for the mean where the others did not come at once."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        start = time.monotonic()
        super().reduce(output, input, group, op)
        if time.monotonic() - start > _PATIENCE:
            output.copy_(input[: output.numel()])


class AddsToWhatIsThere(Reduction):
    """Adds the mean to a multiple of uninitialised memory: nothing, as long as that holds numbers."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        output.add_(torch.empty_like(output).mul_(0))


class SwallowsFailures(Gather):
    """Goes on with what is there when a gather fails."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        try:
            super().gather(output, input, group)
        except RuntimeError:
            output.zero_()


class _Held:
    """Held by itself alone: until garbage is collected."""

    def __init__(self) -> None:
        self.itself = self


def holds_on_weakly(module: nn.Module) -> None:
    """What forward needs is referred to weakly from its start to its end."""

    def begin(module: Any, _: Any) -> None:
        module.__dict__["_held"] = weakref.ref(_Held())

    def end(module: Any, _: Any, output: Tensor) -> Tensor:
        return output if module.__dict__["_held"]() is not None else output * 2

    module.register_forward_pre_hook(begin, prepend=True)
    module.register_forward_hook(end)


gives_up = mutant("stress/late-rank", reduce=GivesUpOnLateRanks)
holds_weakly = mutant("stress/garbage", holds_on_weakly)
adds_to_memory = mutant("stress/memory-of-nan", reduce=AddsToWhatIsThere)
swallows = mutant("stress/failed-collective", gather=SwallowsFailures)
