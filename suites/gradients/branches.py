"""Branches: blocks of one group beside each other, of which micro-batches, or ranks, use different ones.

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suites.kit.cases import Stack
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.oracle.situation import PASS, UNUSED_TOO


class Branches(nn.Sequential):
    """Blocks beside each other."""

    def forward(self, x: Tensor, places: str, run: str) -> Tensor:  # type: ignore[override]
        """``(batch, dim)`` to the same: the sum of what the blocks at these places make of it, of those that run."""
        results = {place: self[int(place)](x) for place in run}
        return torch.stack([results[place] for place in places]).sum(0)


@dataclass(frozen=True)
class BranchedMicroBatches(PrecisionCase):
    """One group of two blocks; ``runs`` has the places of those that each micro-batch goes through.

    On replicas all-reduces wait for the last one, elsewhere all reductions do. With ``zeros_for_unused`` what no
    micro-batch goes through has gradients, too. With ``by_rank`` there is one micro-batch, and each rank has a run of
    its own; blocks that are groups of their own run on all ranks then, on inputs that need a gradient. With
    ``reduced`` every micro-batch is reduced. ``later`` are the places of a pass after a step.
    """

    runs: tuple[str, ...] = ("0", "1")
    zeros_for_unused: bool = False
    by_rank: bool = False
    reduced: bool = False
    later: str = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """Micro-batches, of which the last is reduced, or each; and then perhaps a step and one more pass."""
        before = (UNUSED_TOO,) * self.zeros_for_unused
        if self.by_rank or self.reduced:
            return (*before, *PASS * (1 if self.by_rank else len(self.runs)))
        what = "all_reduce" if self.mesh else "gradient_sync"
        after = ("step", "drop", *PASS) if self.later else ()
        return (*before, f"defer {what}", *PASS * (len(self.runs) - 1), f"resume {what}", *PASS, *after)

    def build(self) -> nn.Sequential:
        """The blocks side by side."""
        return Branches(*super().build())

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What this micro-batch's blocks make of this rank's input."""
        places = (*self.runs, self.later)[rank % len(self.runs) if self.by_rank else batch]
        inputs = self.inputs(batch, rank).to(device, dtype).requires_grad_(bool(self.sharded))
        return net(inputs, places, "01" if self.sharded else places)


class Gate(nn.Module):
    """Its block, or what passes by it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, is_open: bool) -> Any:
        """``(batch, dim)`` to the same."""
        return self.inner(x) if is_open else x.clone()


class Gates(nn.Sequential):
    """Gates one after the other."""

    def forward(self, x: Tensor, places: str) -> Tensor:  # type: ignore[override]
        """``(batch, dim)`` to the same, by the blocks at these places and past all others."""
        for place, gate in enumerate(self):
            x = gate(x, str(place) in places)
        return x


@dataclass(frozen=True)
class PassedMicroBatches(BranchedMicroBatches):
    """Two blocks in a row, each a group; ``runs`` has those of which each micro-batch uses the parameters."""

    def build(self) -> nn.Sequential:
        """The blocks behind gates."""
        return Gates(*map(Gate, super().build()))

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What this micro-batch's blocks make of this rank's input."""
        return net(self.inputs(batch, rank).to(device, dtype), self.runs[batch])


#: Nets of two blocks.
TWO_BLOCKS = st.builds(
    Stack, st.integers(1, 3), st.tuples(*[st.sampled_from(["linear", "mlp"])] * 2), bias=st.booleans()
)
#: In low precision, where gradients that wait are in reduce_dtype and those that come are not.
LOW: dict[str, Any] = {"dtype": "float32", "pairs": [("bfloat16", "float32")]}


def branched_micro_batches(
    zeros: bool = False, cls: type[BranchedMicroBatches] = BranchedMicroBatches, **fixed: Any
) -> st.SearchStrategy[BranchedMicroBatches]:
    """Two or three micro-batches, of which two use different blocks, unless there are ``zeros`` for unused ones."""
    return precision_cases(
        cls,
        steps=1,
        net=TWO_BLOCKS,
        zeros_for_unused=zeros,
        **{
            "runs": st.lists(st.sampled_from(["0", "1", "01"]), min_size=2, max_size=3, unique=not zeros).map(tuple),
            "dtype": "float64",
            "pairs": [(None, None)],
            "sharded": (),
            **fixed,
        },
    )
