"""Micro-batches that use different parameters of one group, reduced across replicas with the last one alone.

Two replicas of one shard, branches a and b; micro-batch 0 runs a on 1 and 3, micro-batch 1 runs b on 2 and 4. The mean
over ranks of a's gradient is 2 and of b's 3, whenever either is reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suites.communication.played import PASS
from suites.kit.hsdp import hsdp_meshes
from suites.kit.stepping import OwnSGD
from suites.kit.strategies import world_sizes
from suites.oracle.low_precision import compute_in
from suites.oracle.situation import Situation


class Branches(nn.ModuleDict):
    """Two branches whose weights are ones: all sums are of small integers."""

    def forward(self, x: Tensor, names: str) -> Tensor:
        """``(1, 2)`` to a number: the sum of what the branches of these names make of it."""
        return torch.stack([self[name](x).sum() for name in names]).sum()


@dataclass(frozen=True)
class BranchedMicroBatches(Situation):
    """``runs`` names the branches that each micro-batch goes through, ``rows`` has how many rows each branch has.

    If ``low``, shards alone compute in bfloat16 and reduce in float32, all with the last micro-batch.
    """

    mesh: tuple[int, int]
    rows: tuple[int, int] = (4, 4)
    runs: tuple[str, ...] = ("a", "b")
    low: bool = False

    exact = True

    @property
    def world_size(self) -> int:  # type: ignore[override]
        """How many ranks."""
        return self.mesh[0] * self.mesh[1]

    @property
    def shards(self) -> int:
        """Into how many parts a parameter is cut."""
        return self.mesh[1]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and inputs."""
        return torch.float32 if self.low else torch.float64

    @property
    def policy(self) -> dict[str, torch.dtype]:
        """The dtypes of computing and reducing."""
        return {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if self.low else {}

    @property
    def actions(self) -> tuple[str, ...]:
        """Micro-batches, of which the last is reduced."""
        what = "gradient_sync" if self.low else "all_reduce"
        return (f"defer {what}", *PASS * (len(self.runs) - 1), f"resume {what}", *PASS)

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The net."""
        net = Branches({name: nn.Linear(2, rows, bias=False) for name, rows in zip("ab", self.rows, strict=True)})
        for parameter in net.parameters():
            nn.init.ones_(parameter)
        return net.to(dtype or self.torch_dtype)

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net in the policy's dtypes if ``working``."""
        compute_in(self.policy if working else {}, net, [""])
        return net

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What this micro-batch's branches make of this rank's input: small integers."""
        return net(torch.tensor([[1.0 + rank + 4 * batch, 2.0 - rank]], dtype=dtype, device=device), self.runs[batch])

    def losses(self, outputs: Any, batch: int, rank: int) -> list[Tensor]:
        """One."""
        return [outputs]

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """One that has nothing to do."""
        return OwnSGD(named.values(), 0.0)


@st.composite
def branched_micro_batches(draw: st.DrawFn, /, low: bool = False) -> BranchedMicroBatches:
    """Two or three micro-batches, of which two use different branches; on ranks by which means are exact."""
    mesh = (1, draw(world_sizes(2, power_of_two=True))) if low else draw(hsdp_meshes(2, power_of_two=True))
    rows = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    runs = draw(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=2, max_size=3).filter(lambda r: len(set(r)) > 1))
    return BranchedMicroBatches(mesh, rows, tuple(runs), low)
