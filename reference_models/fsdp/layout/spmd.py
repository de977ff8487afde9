"""Parameters that are DTensors on one mesh of all axes already, some of which are for data.

Four ranks on a mesh ("dp", "tp") of (2, 2), and a parameter [1 2 3 4] placed ``(Replicate(), Shard(0))``: replicated
over dp, cut over tp. ``dp_mesh_dims=DataParallelMeshDims(shard="dp")`` cuts it over dp too::

    (dp 0, tp 0): 1    (dp 0, tp 1): 3      placements (_StridedShard(0, split_factor=2), Shard(0)),
    (dp 1, tp 0): 2    (dp 1, tp 1): 4      since along dp the rows are strided by tp

Several names make one axis. Unsharded, the module sees what it saw before: a DTensor on the whole mesh.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

from reference_models.fsdp.layout.mesh import ALONE, DataMesh, Spmd, axis_of
from reference_models.fsdp.layout.tensor_parallel import Layout, sharded_layout


@dataclass(frozen=True)
class DataParallelMeshDims:
    """Which axes of a mesh shard and which replicate, by name; a tuple of names is taken as one axis."""

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None

    @property
    def shard_names(self) -> tuple[str, ...]:
        """The names of the shard axis."""
        return _names(self.shard)

    @property
    def replicate_names(self) -> tuple[str, ...]:
        """The names of the replicate axis."""
        return _names(self.replicate)


def spmd_mesh(mesh: DeviceMesh | None, dims: DataParallelMeshDims) -> DataMesh:
    """The data mesh inside ``mesh``. Raises ValueError for names that it has not got, or that are given twice."""
    if not dims.shard_names and not dims.replicate_names:
        raise ValueError("At least one of shard or replicate has to name an axis: dp_mesh_dims has none")
    if mesh is None or mesh.mesh_dim_names is None:
        raise ValueError(f"dp_mesh_dims are names of axes: expected a mesh with mesh_dim_names, got {mesh}")
    names = (*dims.shard_names, *dims.replicate_names)
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"expected dp_mesh_dims to name an axis once, got {name!r} twice: it shards or replicates")
        if name not in mesh.mesh_dim_names:
            raise ValueError(f"Mesh dim name {name!r} not found in mesh.mesh_dim_names {mesh.mesh_dim_names}")
    shard, replicate = (
        mesh[axes[0]] if len(axes) == 1 else mesh[axes]._flatten("_".join(axes)) if axes else None
        for axes in (dims.shard_names, dims.replicate_names)
    )
    parts = [part for part in (replicate, shard) if part is not None]
    return DataMesh(
        parts[0] if len(parts) == 1 else DeviceMesh._concatenate(parts),
        axis_of(replicate, 0) if replicate is not None else ALONE,
        axis_of(shard, 0) if shard is not None else ALONE,
        Spmd(mesh, *(tuple(map(mesh.mesh_dim_names.index, n)) for n in (dims.shard_names, dims.replicate_names))),
    )


def check_spmd(owned: Iterable[tuple[str, nn.Parameter]], spmd: Spmd) -> None:
    """Raise ValueError for a named parameter that is not a DTensor on the mesh, or not replicated on its data axes."""
    for name, parameter in owned:
        if not isinstance(parameter, DTensor):
            raise ValueError(f"dp_mesh_dims are for DTensors on the mesh, but {name!r} is plain: distribute it first")
        if parameter.device_mesh is not spmd.mesh:
            raise ValueError(
                f"Expected {name!r} to be on the same mesh that fully_shard was given, but it is on "
                f"{parameter.device_mesh}"
            )
        assert spmd.mesh.mesh_dim_names is not None
        for axis in spmd.data_axes:
            if not isinstance(parameter.placements[axis], Replicate):
                raise ValueError(
                    f"Expected Replicate() for {name!r} on mesh axis {spmd.mesh.mesh_dim_names[axis]!r}, "
                    f"got {parameter.placements[axis]}"
                )


def layout_over(data: DataMesh, parameter: nn.Parameter, before: Layout | None, dim: int) -> Layout:
    """The layout of a parameter, which may have had one before, once its dim ``dim`` is cut over the data mesh."""
    if before is None:
        return Layout(data.mesh, data.placements(Shard(dim)), parameter.size(), parameter.stride())
    return (sharded_layout if data.spmd is None else _spmd_layout)(before, data, dim)


def _spmd_layout(before: Layout, data: DataMesh, dim: int) -> Layout:
    """The layout of a parameter on the whole mesh once its dim ``dim`` is cut over the shard axis."""
    assert data.spmd is not None
    mesh, cut_over = data.spmd.mesh, data.spmd.shard
    placements = list(before.placements)
    for axis in cut_over:
        placements[axis] = _cut(before, axis, dim)
    if len(cut_over) <= 1:
        return Layout(mesh, tuple(placements), before.shape, before.stride)
    return _with_one_shard_axis(before, placements, data)


def _cut(before: Layout, axis: int, dim: int) -> Placement:
    cuts = 1
    for later in range(axis + 1, before.mesh.ndim):
        placement = before.placements[later]
        if isinstance(placement, Shard) and placement.dim == dim:
            cuts *= before.mesh.size(later)
    return _StridedShard(dim, split_factor=cuts) if cuts > 1 else Shard(dim)


def _with_one_shard_axis(before: Layout, placements: list[Placement], data: DataMesh) -> Layout:
    """On a mesh in which the data axes, one or two, stand where the first of several shard axes stood."""
    assert data.spmd is not None
    names = before.mesh.mesh_dim_names
    assert names is not None
    parts: list[DeviceMesh] = []
    kept: list[Placement] = []
    for axis, name in enumerate(names):
        if axis == data.spmd.shard[0]:
            parts.append(data.mesh)
            kept.extend(data.placements(placements[axis]))
        elif axis not in data.spmd.data_axes:
            parts.append(before.mesh[name])
            kept.append(placements[axis])
    return Layout(DeviceMesh._concatenate(parts), tuple(kept), before.shape, before.stride)


def _names(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)
