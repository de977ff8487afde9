"""What runs on ranks for nets as data: any plan of groups, and training by micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from torch.distributed.tensor.placement_types import Shard

from harness.worlds.rank import Rank
from suites.generated.net_cases import GeneratedCase, Group
from suites.kit.programs import data_mesh
from suites.oracle.sharded import Resting


def spread_net(rank: Rank, case: GeneratedCase, net: Any, **options: Any) -> Any:
    """Do to a net all that the case says: checkpoint, shard group by group, tell what to gather ahead."""
    for name in case.checkpointed:
        rank.implementation.checkpoint(net.get_submodule(name))
    for group in case.groups:
        call(rank, case, net, group, **options)
    for name, ahead in case.ahead:
        net.get_submodule(name).set_modules_to_forward_prefetch([net.get_submodule(each) for each in ahead])
    return net


def spread_below(rank: Rank, case: GeneratedCase, net: Any) -> Any:
    """All but the root."""
    return spread_net(rank, replace(case, groups=case.groups[:-1]), net)


def call(rank: Rank, case: GeneratedCase, net: nn.Module, group: Group, **options: Any) -> None:
    """One call of ``fully_shard``; what is left at its default is not given."""
    options["mesh"] = data_mesh(rank, case)
    if group.reshard_after_forward is not None:
        options["reshard_after_forward"] = group.reshard_after_forward
    if case.dim:
        options["shard_placement_fn"] = lambda parameter: Shard(case.cut_dim(parameter))
    modules = [net.get_submodule(name) for name in group.modules]
    rank.implementation.fully_shard(modules if len(modules) > 1 else modules[0], **options)


class ShardedNet(Resting):
    """The net of a case, on one rank."""

    def made(self) -> Any:
        """Build the net and do all that the case says."""
        return spread_net(self.rank, self.case, self.case.build().to(self.rank.device))
