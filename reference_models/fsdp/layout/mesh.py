"""The mesh of data parallelism, always of two axes: replicas, and the shards of one replica. Either may have size 1.

Four ranks as two replicas of two shards::

    replica 0: ranks 0 1      gather and scatter among 0 1 and among 2 3 (shard axis),
    replica 1: ranks 2 3      all-reduce among 0 2 and among 1 3 (replicate axis)

FSDP is replicate 1; DDP is shard 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.placement_types import Placement, Replicate

from reference_models.fsdp.errors import NotAllowed


@dataclass(frozen=True)
class Axis:
    """One axis as this rank sees it; without a group it has one rank and nothing to communicate."""

    size: int
    rank: int
    group: dist.ProcessGroup | None


ALONE = Axis(1, 0, None)


@dataclass(frozen=True)
class Spmd:
    """A mesh of all axes on which the parameters are DTensors already, and which of its axes are for data."""

    mesh: DeviceMesh
    shard: tuple[int, ...]
    replicate: tuple[int, ...]

    @property
    def data_axes(self) -> tuple[int, ...]:
        """Axes on which parameters are replicated before they are sharded, and gradients are ours to reduce."""
        return (*self.shard, *self.replicate)


@dataclass(frozen=True)
class DataMesh:
    """The user's mesh and its two axes. ``mesh`` keeps the user's own axes: one (shard or replicate), or both.

    ``spmd`` is the larger mesh that these axes are of, if parameters are DTensors on that; see ``spmd.py``.
    """

    mesh: DeviceMesh
    replicate: Axis
    shard: Axis
    spmd: Spmd | None = None

    @property
    def size(self) -> int:
        """How many ranks share in a gradient's mean."""
        return self.replicate.size * self.shard.size

    @cached_property
    def device(self) -> torch.device:
        """This rank's device."""
        kind = self.mesh.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, getattr(torch, kind).current_device())

    @property
    def shard_mesh(self) -> DeviceMesh:
        """The shard axis alone."""
        if self.mesh.ndim == 1:
            return self.mesh
        names = self.mesh.mesh_dim_names
        assert names is not None, "a mesh of two axes without names is refused"
        return self.mesh[names[-1]]

    def placements(self, shard: Placement) -> tuple[Placement, ...]:
        """How a sharded parameter lies on the user's mesh."""
        if self.mesh.ndim == 2:
            return (Replicate(), shard)
        return (shard,) if self.shard.group is not None else (Replicate(),)


def sharding_mesh(mesh: DeviceMesh | None) -> DataMesh:
    """The mesh of ``fully_shard``: one axis shards; of two, the first replicates. Raises ValueError for others."""
    mesh = mesh if mesh is not None else default_mesh()
    if mesh.ndim not in (1, 2):
        raise ValueError(
            f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}: one axis to shard over, or (replicate, shard)"
        )
    if mesh.ndim == 1:
        return DataMesh(mesh, ALONE, axis_of(mesh, 0))
    if mesh.mesh_dim_names is None:
        raise NotAllowed("Please init the 2D mesh for HSDP with mesh_dim_names specified, e.g. ('replicate', 'shard')")
    return DataMesh(mesh, axis_of(mesh, 0), axis_of(mesh, 1))


def replicating_mesh(mesh: DeviceMesh | None) -> DataMesh:
    """The mesh of ``replicate``: its one axis replicates."""
    mesh = mesh if mesh is not None else default_mesh()
    if mesh.ndim != 1:
        raise ValueError(f"replicate expects a 1D DeviceMesh but got {mesh}")
    return DataMesh(mesh, axis_of(mesh, 0), ALONE)


_separate: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def with_own_group(data: DataMesh) -> DataMesh:
    """The same mesh, its shard axis with another process group of the same ranks, made once for all who ask.

    A collective act of these ranks.
    """
    assert data.shard.group is not None, "only meshes that shard have a reduce-scatter to give a group to"
    if data.shard.group not in _separate:
        ranks = dist.get_process_group_ranks(data.shard.group)
        _separate[data.shard.group] = dist.new_group(ranks, use_local_synchronization=True)
    return replace(data, shard=replace(data.shard, group=_separate[data.shard.group]))


def smaller_mesh(data: DataMesh, size: int) -> DataMesh:
    """The same ranks in groups of ``size`` neighbours: where parameters stay gathered in part between passes."""
    rows = data.mesh.mesh.view(-1, size)
    mesh = DeviceMesh(data.mesh.device_type, rows)
    return DataMesh(mesh, axis_of(mesh, 0), axis_of(mesh, 1))


def default_mesh() -> DeviceMesh:
    """All ranks in one axis, on the accelerator or the CPU; starts the default process group if there is none."""
    if not dist.is_initialized():
        dist.init_process_group()
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return init_device_mesh(accelerator.type if accelerator else "cpu", (dist.get_world_size(),))


def axis_of(mesh: DeviceMesh, place: int) -> Axis:
    """One axis of a mesh as this rank sees it."""
    return Axis(mesh.size(place), mesh.get_local_rank(place), mesh.get_group(place))
