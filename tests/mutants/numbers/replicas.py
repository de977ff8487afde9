"""Implementations that lose what lies between the two axes of a hybrid mesh. Right is the mean over all four ranks::

ranks 0 1 / 2 3 with gradients 1 2 / 3 6     shard axis: 1.5 / 4.5     replicate axis: 3
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.mutants.making import Reduction, called_otherwise, mutant, right


def mesh_of(module: Any) -> Any:
    """The mesh of a sharded module's parameters, or None if it has none that are sharded."""
    return next((parameter.device_mesh for parameter in module.parameters() if isinstance(parameter, DTensor)), None)


class KeepsItsOutput(Reduction):
    """Right, and remembers the mean over the shard axis until it is asked for."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        self.kept = [output.clone()]


def never_meet(module: Any) -> None:
    """Gets 1.5 in one replica and 4.5 in the other."""
    mesh = mesh_of(module)
    if mesh is not None and mesh.ndim > 1:
        reduction = KeepsItsOutput()
        module.set_custom_reduce_scatter(reduction)
        module.set_all_reduce_hook(lambda gradient: gradient.copy_(reduction.kept.pop()) if reduction.kept else None)


def sum_up(module: Any) -> None:
    """Gets 6: replicas are summed, not averaged."""
    mesh = mesh_of(module)
    if mesh is not None and mesh.ndim == 2:
        module.set_all_reduce_hook(lambda gradient: gradient.mul_(mesh.size(0)))


def meet_in_bfloat16(module: Any) -> None:
    """Gets 3 with eight bits."""
    mesh = mesh_of(module)
    if mesh is not None and mesh.ndim == 2 and mesh.size(0) > 1:
        module.set_all_reduce_hook(lambda gradient: gradient.copy_(gradient.to(torch.bfloat16)))


def reduce_over_the_other_axis(module: Any) -> None:
    """Mixes the rows of shards that are no replicas of each other."""
    mesh = mesh_of(module)
    if mesh is None or mesh.ndim < 2:
        return

    def mix(gradient: Tensor) -> None:
        dist.all_reduce(gradient, group=mesh.get_group(1))
        gradient /= mesh.size(1)

    module.set_all_reduce_hook(mix)


def on_the_mesh_within(module: Any, **options: Any) -> Any:
    """A module lies on the mesh on which what was sharded within it lies."""
    parameters = [] if isinstance(module, list) else list(module.parameters())
    meshes = [parameter.device_mesh for parameter in parameters if isinstance(parameter, DTensor)]
    return right.fully_shard(module, **{**options, **({"mesh": meshes[0]} if meshes else {})})


lies_as_what_is_within = called_otherwise("hsdp/within-shards", on_the_mesh_within)
#: Gets none: replicas wait for a reduction that is never asked for.
replicas_have_no_gradients = mutant("hsdp/exact", lambda module: module.set_requires_all_reduce(False))
replicas_never_meet = mutant("hsdp/exact", never_meet)
sums_over_replicas = mutant("hsdp/exact", sum_up)
replicas_meet_in_bfloat16 = mutant("hsdp/general", meet_in_bfloat16)
replicas_drift = mutant("hsdp/replicas-stay-equal", never_meet)
reduces_over_the_other_axis = mutant("hsdp/exact", reduce_over_the_other_axis)
