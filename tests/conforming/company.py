"""Implementations that communicate more than they must, in a group of their own.

Two ranks that shard a net of three parameters each bring [3 -3], and learn by one all-reduce that all have the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch as tensors
import torch.distributed as dist

from tests.conforming.making import reference, torch, variant
from tests.conforming.noticing import noticed

#: Of each default group, as long as it lives, the groups that were made beside it, by their ranks.
_groups: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = weakref.WeakKeyDictionary()


def own_group(options: Mapping[str, Any]) -> Any:
    """A group apart of the ranks that share what is sharded; None where there is one rank only."""
    mesh = options.get("mesh")
    if "dp_mesh_dims" in options:
        return None  # which axes those are is not ours to work out
    group = dist.group.WORLD if mesh is None else mesh.get_group(mesh.ndim - 1)
    ranks = tuple(dist.get_process_group_ranks(group))
    made = _groups.setdefault(dist.group.WORLD, {})
    if ranks not in made and len(ranks) > 1:
        made[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return made.get(ranks)


def meets_before_forward(module: Any, options: Mapping[str, Any]) -> None:
    """All ranks meet at a barrier of their own before a module runs. Right: a barrier carries no data."""
    group = own_group(options)

    def meet(*_: Any) -> None:
        noticed("meets before forward")
        dist.barrier(group=group)

    if group is not None:
        module.register_forward_pre_hook(meet)


def agrees_when_sharding(module: Any, options: Mapping[str, Any]) -> None:
    """Ranks make sure that they shard the same. Right: what is said once, before training, costs no step anything."""
    group, count = own_group(options), len(list(module.parameters()))
    if group is not None:
        noticed("agrees when sharding")
        most = tensors.tensor([count, -count], device="cpu")
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        if most.tolist() != [count, -count]:
            raise ValueError(f"ranks shard modules of {-most[1]} to {most[0]} parameters: shard the same on all")


meets_first = variant("meets before forward", torch, after=meets_before_forward)
makes_sure = variant("agrees when sharding", reference, after=agrees_when_sharding)
