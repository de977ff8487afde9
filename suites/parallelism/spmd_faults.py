"""What callers may get wrong about data axes: programs that must raise."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from harness.worlds.rank import Rank
from suites.kit.programs import whole_mesh
from suites.parallelism.spmd import SpmdCase, data_axes, distributed, sharded


def no_names(rank: Rank, case: SpmdCase) -> None:
    """Name no axis at all."""
    make = rank.implementation.data_parallel_mesh_dims
    assert make is not None
    sharded(rank, case, dp_mesh_dims=make())


def unknown_name(rank: Rank, case: SpmdCase) -> None:
    """Name an axis that the mesh has not got."""
    sharded(rank, case, dp_mesh_dims=data_axes(rank, ("elsewhere",), ()))


def nameless_mesh(rank: Rank, case: SpmdCase) -> None:
    """Give a mesh whose axes have no names."""
    sharded(rank, case, mesh=rank.mesh(case.mesh))


def plain_parameters(rank: Rank, case: SpmdCase) -> None:
    """Leave all parameters plain."""
    net: Any = case.build()
    sharded(rank, case, net)


def cut_parameters(rank: Rank, case: SpmdCase) -> None:
    """Cut a parameter over a data axis already."""
    redistributed(rank, case, whole_mesh(rank, case), cut=True)


def other_mesh(rank: Rank, case: SpmdCase) -> None:
    """Have a parameter on a mesh of the same ranks under other names."""
    redistributed(rank, case, rank.mesh(case.mesh, tuple(f"other_{axis}" for axis in case.axes)), cut=False)


def redistributed(rank: Rank, case: SpmdCase, mesh: DeviceMesh, cut: bool) -> None:
    """Put the first weight elsewhere, then shard."""
    net = distributed(rank, case)
    layer: Any = net[0].in_proj
    placed = [Shard(0) if cut else Replicate() for _ in case.axes]
    layer.weight = nn.Parameter(DTensor.from_local(layer.weight.detach().to_local(), mesh, placed, run_check=False))
    sharded(rank, case, net)


def placed_replicas(rank: Rank, case: SpmdCase) -> None:
    """Give replicas, which are not cut at all, a function that says how to cut."""
    sharded(rank, case, shard_placement_fn=lambda parameter: Shard(0))


def replicate_by_shards(rank: Rank, case: SpmdCase) -> None:
    """Ask ``replicate`` to shard."""
    replicate, mesh = rank.implementation.replicate_fsdp, whole_mesh(rank, case)
    assert replicate is not None
    replicate(distributed(rank, case), mesh=mesh, dp_mesh_dims=data_axes(rank, case.shard, ()))
