"""Micro-batches that use different parameters of one group, of which the last one alone is reduced, or all-reduced.

Two replicas of one shard, blocks 0 and 1; micro-batch 0 runs block 0 on 1 and 3, micro-batch 1 runs block 1 on 2 and 4.
The mean over ranks of block 0's gradient is 2 and of block 1's 3, whenever either is reduced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suites.communication.played import PASS
from suites.kit.cases import Stack
from suites.kit.hsdp import hsdp_meshes
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.strategies import world_sizes


class Branches(nn.Sequential):
    """Blocks beside each other."""

    def forward(self, x: Tensor, places: str) -> Tensor:  # type: ignore[override]
        """``(batch, dim)`` to the same: the sum of what the blocks at these places make of it."""
        return torch.stack([self[int(place)](x) for place in places]).sum(0)


@dataclass(frozen=True)
class BranchedMicroBatches(PrecisionCase):
    """One group of two blocks; ``runs`` has the places of those that each micro-batch goes through.

    On replicas all-reduces wait for the last one, and in low precision all reductions do.
    """

    runs: tuple[str, ...] = ("0", "1")

    @property
    def actions(self) -> tuple[str, ...]:
        """Micro-batches, of which the last is reduced."""
        what = "all_reduce" if self.mesh else "gradient_sync"
        return (f"defer {what}", *PASS * (len(self.runs) - 1), f"resume {what}", *PASS)

    def build(self) -> nn.Sequential:
        """The blocks side by side."""
        return Branches(*super().build())

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What this micro-batch's blocks make of this rank's input."""
        return net(self.inputs(batch, rank).to(device, dtype), self.runs[batch])


@st.composite
def branched_micro_batches(draw: st.DrawFn, /, low: bool = False) -> Any:
    """Two or three micro-batches, of which two use different blocks; on replicas, or in low precision on one axis."""
    mesh = () if low else draw(hsdp_meshes(2, power_of_two=True))
    fixed: dict[str, Any] = {
        "world_size": mesh[0] * mesh[1] if mesh else draw(world_sizes(2, power_of_two=True)),
        "mesh": mesh,
        "dtype": "float32" if low else "float64",
        "net": Stack(
            draw(st.integers(1, 3)),
            draw(st.tuples(*[st.sampled_from(["linear", "mlp"])] * 2)),
            bias=draw(st.booleans()),
        ),
        "pairs": [("bfloat16", "float32") if low else (None, None)],
        "runs": draw(st.lists(st.sampled_from(["0", "1", "01"]), min_size=2, max_size=3, unique=True).map(tuple)),
    }
    return draw(precision_cases(BranchedMicroBatches, steps=1, sharded=(), **fixed))
