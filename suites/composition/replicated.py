"""Replicas on several axes or in low precision, and what ``replicate`` must refuse: what runs on ranks.

One weight of four rows on two ranks, after ``replicate_fsdp``: a DTensor placed ``(Replicate(),)``, rows 0 … 3 on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from harness.worlds.rank import Rank
from suites.composition.compose import ComposedCase, spread_by
from suites.kit.cases import TrainingCase
from suites.kit.parallel import cut_over_tp
from suites.kit.programs import ShardedStack, data_mesh, policy_of
from suites.kit.trees import modules_outside, slice_of


class Replicas(ShardedStack):
    """A stack on one rank, cut over tp if there is such an axis, replicated over the other with the case's policy."""

    def made(self) -> Any:
        """The net."""
        net, mesh = cut_over_tp(self.rank, self.case, self.case.build()), data_mesh(self.rank, self.case)
        policy = {"mp_policy": policy_of(self.rank, self.case)} if self.case.policy else {}
        return replicate(self.rank, net, mesh=mesh["replicate"] if mesh.ndim > 1 else mesh, **policy)


def replicate(rank: Rank, net: nn.Module, **options: Any) -> Any:
    """Call the function that gives DTensors."""
    return rank.implementation.replicate_fsdp(net, **options)


def sliced(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """What all modules but the last of a replicated sequence are, taken as a slice."""
    return slice_of(replicate(rank, case.build(), mesh=rank.mesh()))


def expected_layouts(case: ComposedCase) -> dict[str, Any]:
    """DTensors, placed by what was applied closest to them."""
    words = {"replicate_fsdp": "Replicate()", "fully_shard": "Shard(0)"}
    return {
        name: {"type": "DTensor", "on the mesh": True, "placements": [words[function]]}
        for name, function in spread_by(case).items()
    }


def expected_managed(case: ComposedCase) -> list[str]:
    """The modules outside everything that was taken."""
    net = case.build()
    names = {module: name for name, module in net.named_modules()}
    return sorted(names[module] for module in modules_outside(net, [call.place for call in case.calls]))


def wrong(rank: Rank, case: ComposedCase, how: str) -> None:
    """Replicate the net as one of ``WRONG``, over a mesh of one axis or of two."""
    mesh = rank.mesh((1, rank.size), ("replicate", "shard")) if how == "over two axes" else rank.mesh()
    replicate(rank, WRONG[how](case.build()), mesh=mesh)


#: What is replicated of a net.
WRONG: dict[str, Callable[[nn.Module], nn.Module]] = {
    "over two axes": lambda net: net,
    "in a list": lambda net: nn.ModuleList(net.children()),
    "in a dict": lambda net: nn.ModuleDict({f"block {name}": block for name, block in net.named_children()}),
}
