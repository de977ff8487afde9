"""Where each parameter of one call goes: along which of its dims it is cut, and over which mesh.

    shard_placement_fn=lambda p: Shard(1) if p.shape == (2, 4) else None

cuts a (2, 4) parameter of two ranks into (2, 2) and (2, 2), and others along dim 0. A ``ShardPlacementResult`` names a
mesh too: the parameters of one mesh are communicated together, in a group of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn
from torch.distributed.tensor.placement_types import Shard

from reference_models.fsdp.layout.mesh import DataMesh
from reference_models.fsdp.layout.sharding import Cut, check_cut
from reference_models.fsdp.layout.tensor_parallel import check_beside, local_of
from reference_models.fsdp.parameters.param import ManagedParameter


@dataclass
class ShardPlacementResult:
    """A dim to cut along (None: dim 0) and the mesh to cut over; give the same object for all parameters of a mesh."""

    placement: Shard | None
    mesh_info: DataMesh


Placement = Callable[[nn.Parameter], "Shard | ShardPlacementResult | None"]


def placed(parameter: nn.Parameter, choose: Placement | None, data: DataMesh) -> tuple[DataMesh, Shard]:
    """The mesh and the placement of one parameter. Raises ValueError for an answer that is none."""
    if choose is None:
        return data, Shard(0)
    if data.shard.group is None:
        raise ValueError(
            "shard_placement_fn requires FSDPMeshInfo: the mesh only replicates, so there is nothing to cut"
        )
    answer = choose(parameter)
    result = answer if isinstance(answer, ShardPlacementResult) else ShardPlacementResult(answer, data)
    shard = Shard(0) if result.placement is None else result.placement
    if not isinstance(shard, Shard) or not isinstance(result.mesh_info, DataMesh):
        raise ValueError(
            f"Invalid shard_placement_fn result: expected None, Shard(dim) or ShardPlacementResult(…), got {answer!r}"
        )
    return result.mesh_info, shard


def cut_of(parameter: nn.Parameter, name: str, mesh: DataMesh, placement: Shard) -> Cut:
    """How a parameter is cut. Raises ValueError or NotImplementedError for one that cannot be; changes nothing."""
    if not parameter.is_contiguous():
        raise NotImplementedError(
            f"FSDP does not support non-contiguous parameters: {name!r} has shape "
            f"{tuple(parameter.shape)} and stride {parameter.stride()}; call .contiguous() on it first"
        )
    if mesh.spmd is None:
        check_beside(name, parameter, mesh)
    return check_cut(local_of(parameter).shape, placement.dim, mesh.shard.size)


def check_meshes(meshes: Sequence[DataMesh]) -> None:
    """Raise ValueError if two objects stand for the same mesh: what communicates together would be unclear.

    Replicas of shards may lie beside what is sharded over the same ranks without replicas.
    """
    known: dict[object, DataMesh] = {}
    for mesh in meshes:
        if known.setdefault((mesh.shard.group, mesh.replicate.group), mesh) is not mesh:
            raise ValueError(
                "shard_placement_fn gave several mesh_info objects of one mesh: make one FSDPMeshInfo and give it for "
                "all parameters that belong there"
            )


def by_mesh(parameters: Sequence[ManagedParameter]) -> list[tuple[DataMesh, list[ManagedParameter]]]:
    """The parameters by mesh, in order."""
    groups: dict[int, tuple[DataMesh, list[ManagedParameter]]] = {}
    for parameter in parameters:
        groups.setdefault(id(parameter.mesh), (parameter.mesh, []))[1].append(parameter)
    return list(groups.values())
