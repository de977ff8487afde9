"""What runs on ranks to shard a tree, and facts about the tensors that come of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from harness.rank import Rank
from suites.kit.trees import TreeCase


def mesh_of(rank: Rank, case: TreeCase) -> DeviceMesh:
    """The mesh that the case shards over: all ranks, or, with copies, one axis of a mesh of two."""
    if case.copies == 1:
        return rank.mesh()
    return rank.mesh((case.shards, case.copies), ("shard", "copy"))["shard"]


def shard_below(rank: Rank, case: TreeCase, net: nn.Module) -> nn.Module:
    """Do to the net all that the case says but for the root: replicate, then shard by the plan."""
    for name in case.replicated:
        assert rank.implementation.replicate is not None
        rank.implementation.replicate(net.get_submodule(name))
    for name in case.plan:
        assert rank.implementation.fully_shard is not None
        rank.implementation.fully_shard(net.get_submodule(name), mesh=mesh_of(rank, case))
    return net


def shard_tree(rank: Rank, case: TreeCase) -> nn.Module:
    """Build the net and shard it, root last."""
    net = shard_below(rank, case, case.build())
    assert rank.implementation.fully_shard is not None
    rank.implementation.fully_shard(net, mesh=mesh_of(rank, case))
    return net


def spread(tensor: Tensor, mesh: DeviceMesh) -> dict[str, Any]:
    """How a tensor lies on ranks: whether it is a DTensor, whether on this very mesh, and its placements in words."""
    if not isinstance(tensor, DTensor):
        return {"type": type(tensor).__name__, "on the mesh": False, "placements": []}
    return {
        "type": "DTensor",
        "on the mesh": tensor.device_mesh == mesh,
        "placements": [placement_words(placement) for placement in tensor.placements],
    }


def placement_words(placement: Placement) -> str:
    """``"Shard(0)"`` for whatever cuts dim 0, strided or not; ``"Replicate()"``; else what it calls itself."""
    if placement.is_replicate():
        return "Replicate()"
    dim = getattr(placement, "dim", None)
    return repr(placement) if dim is None else f"Shard({dim})"


def size_and_stride(tensor: Tensor) -> dict[str, list[int]]:
    """The global size and stride of a tensor."""
    return {"size": list(tensor.size()), "stride": list(tensor.stride())}
