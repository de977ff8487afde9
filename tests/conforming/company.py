"""Implementations that communicate more than they must.

Two ranks that shard a net of three parameters each bring [3 -3], and learn by one all-reduce that all have the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch as tensors
import torch.distributed as dist

from tests.conforming.making import reference, torch, variant
from tests.conforming.noticing import noticed


def group_of(options: Mapping[str, Any]) -> Any:
    """The group of the ranks that share what is sharded; None where there is one rank only."""
    mesh = options.get("mesh")
    if "dp_mesh_dims" in options:
        return None  # which axes those are is not ours to work out
    group = dist.group.WORLD if mesh is None else mesh.get_group(mesh.ndim - 1)
    return group if dist.get_world_size(group) > 1 else None


def meets_before_forward(module: Any, options: Mapping[str, Any]) -> None:
    """All ranks meet at a barrier before a module runs. Right: a barrier carries no data."""
    group = group_of(options)

    def meet(*_: Any) -> None:
        noticed("meets before forward")
        dist.barrier(group=group)

    if group is not None:
        module.register_forward_pre_hook(meet)


def agrees_when_sharding(module: Any, options: Mapping[str, Any]) -> None:
    """Ranks make sure that they shard the same. Right: what is said once, before training, costs no step anything."""
    group, count = group_of(options), len(list(module.parameters()))
    if group is not None:
        noticed("agrees when sharding")
        most = tensors.tensor([count, -count], device="cpu")
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        if most.tolist() != [count, -count]:
            raise ValueError(f"ranks shard modules of {-most[1]} to {most[0]} parameters: shard the same on all")


def agrees_in_the_first_forward(module: Any, options: Mapping[str, Any]) -> None:
    """Ranks make sure before a module first runs that they shard the same. Right: it is said once."""
    group = group_of(options)

    def agree(*_: Any) -> None:
        hook.remove()
        noticed("agrees at first")
        dist.all_reduce(tensors.ones(1, dtype=tensors.int64), op=dist.ReduceOp.MAX, group=group)

    if group is not None:
        hook = module.register_forward_pre_hook(agree)


meets_first = variant("meets before forward", torch, after=meets_before_forward)
makes_sure = variant("agrees when sharding", reference, after=agrees_when_sharding)
agrees_at_first = variant("agrees at first", torch, after=agrees_in_the_first_forward)
