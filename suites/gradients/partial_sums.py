"""Micro-batches that use different parameters of one group, reduced across replicas with the last one alone.

Two replicas of one shard, branches a and b; micro-batch 0 runs a on 1 and 3, micro-batch 1 runs b on 2 and 4. The mean
over ranks of a's gradient is 2 and of b's 3, whenever either is reduced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.data.case import Case
from harness.trial import most_ranks
from harness.worlds.rank import Rank
from suites.kit.hsdp import hsdp_meshes
from suites.kit.programs import gradients
from suites.oracle.layout import shard


@dataclass(frozen=True)
class BranchedMicroBatches(Case):
    """``runs`` names the branches that each micro-batch goes through, ``rows`` has how many rows each branch has."""

    mesh: tuple[int, int]
    rows: tuple[int, int] = (4, 4)
    runs: tuple[str, ...] = ("a", "b")

    @property
    def world_size(self) -> int:
        """How many ranks."""
        return self.mesh[0] * self.mesh[1]

    def build(self) -> nn.ModuleDict:
        """Two branches in float64, whose weights do not matter: gradients are inputs."""
        torch.manual_seed(0)
        return nn.ModuleDict(
            {name: nn.Linear(2, rows, bias=False).double() for name, rows in zip("ab", self.rows, strict=True)}
        )

    def loss(self, net: nn.ModuleDict, micro: int, rank: int) -> Tensor:
        """The sum of what this micro-batch's branches make of this rank's input: small integers."""
        inputs = torch.tensor([[1.0 + rank + 4 * micro, 2.0 - rank]]).to(next(net.parameters()).dtype)
        return torch.stack([net[name](inputs).sum() for name in self.runs[micro]]).sum()


@st.composite
def branched_micro_batches(draw: st.DrawFn) -> BranchedMicroBatches:
    """Two or three micro-batches, of which two use different branches."""
    rows = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    runs = draw(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=2, max_size=3).filter(lambda r: len(set(r)) > 1))
    return BranchedMicroBatches(draw(hsdp_meshes(2, power_of_two=True)), rows, tuple(runs))


@st.composite
def late_branches(draw: st.DrawFn) -> BranchedMicroBatches:
    """The same on shards alone, of a number of ranks by which means are exact."""
    case = draw(branched_micro_batches())
    return replace(case, mesh=(1, draw(st.sampled_from([size for size in (2, 4) if size <= most_ranks()]))))


def add_up(rank: Rank, case: BranchedMicroBatches) -> dict[str, Tensor | None]:
    """One group of both branches; this rank's part of the gradients after the last micro-batch."""
    net: Any = _Root(case.build())
    fully_shard = rank.implementation.fully_shard
    assert fully_shard is not None
    fully_shard(net, mesh=rank.mesh(case.mesh, ("replicate", "shard")))
    for micro in range(len(case.runs)):
        net.set_requires_all_reduce(micro == len(case.runs) - 1)
        net(case, micro, rank.number).backward()
    return {name.removeprefix("branches."): gradient for name, gradient in gradients(net).items()}


def add_up_in_low_precision(rank: Rank, case: BranchedMicroBatches) -> dict[str, Tensor | None]:
    """The same with sync off until the last micro-batch, computed in bfloat16 and reduced in float32."""
    net: Any = _Root(case.build().float())
    make, fully_shard = rank.implementation.mixed_precision_policy, rank.implementation.fully_shard
    assert make is not None
    assert fully_shard is not None
    fully_shard(net, mesh=rank.mesh(), mp_policy=make(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    for micro in range(len(case.runs)):
        net.set_requires_gradient_sync(micro == len(case.runs) - 1)
        net(case, micro, rank.number).backward()
    return {name.removeprefix("branches."): gradient for name, gradient in gradients(net).items()}


class _Root(nn.Module):
    """The branches in a module with a forward of its own."""

    def __init__(self, branches: nn.ModuleDict) -> None:
        super().__init__()
        self.branches = branches

    def forward(self, case: BranchedMicroBatches, micro: int, rank: int) -> Tensor:
        return case.loss(self.branches, micro, rank)


def on_rank(case: BranchedMicroBatches, rank: int) -> dict[str, Tensor | None]:
    """This rank's part of the mean over ranks of each rank's sum over micro-batches, computed explicitly."""
    net = case.build()
    for number in range(case.world_size):
        for micro in range(len(case.runs)):
            torch.autograd.backward(case.loss(net, micro, number) / case.world_size)
    whole = {name: parameter.grad for name, parameter in net.named_parameters()}
    return {name: None if g is None else shard(g, case.mesh[1], rank % case.mesh[1]) for name, g in whole.items()}
