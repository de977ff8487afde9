"""Implementations that are wrong about what a parameter becomes, or about the mesh they are given.

Right is: rows [1, 2, 3] on two ranks are [1, 2] and [3], on the mesh that was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tests.mutants import END_TO_END
from tests.mutants.making import adopt, called_otherwise, mutant, right, sums

# What becomes of a parameter.


def remakes(remake: Callable[[DTensor], Tensor]) -> Callable[[Any], None]:
    """A change to each module: every sharded parameter in it becomes what ``remake`` makes of it."""

    def change(module: nn.Module) -> None:
        made: dict[Tensor, nn.Parameter] = {}
        for owner in module.modules():
            for name, parameter in owner.named_parameters(recurse=False):
                if isinstance(parameter, DTensor) and parameter not in made:
                    made[parameter] = nn.Parameter(remake(parameter.detach()), parameter.requires_grad)
                if parameter in made:
                    owner._parameters[name] = made[parameter]
        adopt(module, made)

    return change


def rebuilt(like: DTensor, local: Tensor, size: Any = None, placements: Any = None) -> DTensor:
    """A DTensor like ``like`` but for what is given."""
    size = size or like.size()
    stride = torch.empty(size, device="meta").stride()
    placed = placements or like.placements
    return DTensor.from_local(local, like.device_mesh, placed, run_check=False, shape=torch.Size(size), stride=stride)


def padded(parameter: DTensor) -> Tensor:
    """Its rows with the padding: [1, 2] and [3, 0]."""
    local, ranks = parameter.to_local(), parameter.device_mesh.size(0)
    missing = -(-parameter.size(0) // ranks) - local.size(0)
    return torch.cat([local, local.new_zeros(max(0, missing), *local.shape[1:])])


def with_padded_size(parameter: DTensor) -> Tensor:
    """A parameter of rows 1, 2, 3 on two ranks says it has four rows."""
    ranks = parameter.device_mesh.size()
    rows = -(-parameter.size(0) // ranks) * ranks
    return rebuilt(parameter, parameter.to_local(), size=(rows, *parameter.shape[1:]))


def rows_of_the_next_rank(parameter: DTensor) -> Tensor:
    """[3] and [1, 2]."""
    ranks, here = parameter.device_mesh.size(), parameter.device_mesh.get_local_rank()
    chunks = parameter.full_tensor().tensor_split(ranks)
    return rebuilt(parameter, chunks[(here + 1) % ranks])


def says_replicated(parameter: DTensor) -> Tensor:
    """Forgets that tensor parallelism cut it too."""
    return rebuilt(parameter, parameter.to_local(), placements=(parameter.placements[0], Replicate()))


def strided_by_one(parameter: DTensor) -> Tensor:
    """Of several axes that cut a dim besides the data axis, counts the last alone."""
    last = parameter.device_mesh.size(-1)
    placed = [
        _StridedShard(each.dim, split_factor=last) if isinstance(each, _StridedShard) else each
        for each in parameter.placements
    ]
    return rebuilt(parameter, parameter.to_local(), placements=placed)


def says_plainly_sharded(parameter: DTensor) -> Tensor:
    """Says of rows that tp cut before dp that dp cut them first, which puts them together in another order."""
    plain = [Shard(p.dim) if hasattr(p, "dim") else p for p in parameter.placements]
    return rebuilt(parameter, parameter.to_local(), placements=plain)


def cut_by_dp_first(parameter: DTensor) -> Tensor:
    """Cuts rows over dp before tp: rank 1 of four gets row 1 instead of row 2."""
    if not all(getattr(p, "dim", None) == 0 for p in parameter.placements):
        return parameter
    part = parameter.full_tensor()
    for axis in (0, 1):
        mesh = parameter.device_mesh
        part = part.tensor_split(mesh.size(axis))[mesh.get_local_rank(axis)]
    return rebuilt(parameter, part)


def only_if_uneven(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The change for parameters with rows that all ranks together do not divide."""
    return lambda parameter: change(parameter) if parameter.size(0) % parameter.device_mesh.size() else parameter


def only_in_two_axes(remake: Callable[[DTensor], Tensor]) -> Callable[[DTensor], Tensor]:
    """Remake what lies on a mesh of two axes."""
    return lambda parameter: remake(parameter) if parameter.device_mesh.ndim == 2 else parameter


def unties(module: nn.Module) -> None:
    """Give each place that shares a parameter one of its own, as an implementation does that copies by place."""
    seen: set[Tensor] = set()
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter in seen:
                owner._parameters[name] = nn.Parameter(parameter.detach().clone())
            seen.add(parameter)


# What is made of the arguments.


def over_all_ranks(module: Any, **options: Any) -> Any:
    """Shard over all ranks, whatever mesh is given."""
    return right.fully_shard(module, **{**options, "mesh": None})


def over_the_first_axis(module: Any, **options: Any) -> Any:
    """Take the first axis of a mesh that has too many."""
    mesh = options.pop("mesh", None)
    return right.fully_shard(module, mesh=mesh["a"] if mesh is not None and mesh.ndim == 3 else mesh, **options)


def gathers_tensor_parallel(module: Any, **options: Any) -> Any:
    """Undo tensor parallelism, and shard the whole parameters over dp alone."""
    remakes(lambda parameter: parameter.full_tensor() if parameter.device_mesh != options["mesh"] else parameter)(
        module
    )
    return right.fully_shard(module, **options)


def sums_over_made_meshes(module: Any, **options: Any) -> Any:
    """Sum gradients where the mesh is no slice of another, that is, was made from groups."""
    right.fully_shard(module, **options)
    if options["mesh"]._get_root_mesh() is options["mesh"] and options["mesh"].size() > 1:
        sums(module)
    return module


leaves_empty_parameters = mutant(
    "sharding/zero-elements-layout", remakes(lambda parameter: parameter if parameter.numel() else parameter.to_local())
)
plain_parameters = mutant("sharding/layout", remakes(lambda parameter: parameter.to_local()))
ignores_the_mesh = called_otherwise("sharding/layout", over_all_ranks)
keeps_the_padding = mutant("sharding/rows", remakes(lambda p: rebuilt(p, padded(p))))
pads_the_size = mutant("sharding/size-and-stride", remakes(with_padded_size))
holds_the_next_ranks_rows = mutant("sharding/rows", remakes(rows_of_the_next_rank))
unties_what_is_shared = mutant("sharding/shared", unties)
pads_the_size_in_two_axes = mutant("sharding/2d-size-and-stride", remakes(only_in_two_axes(with_padded_size)))
undoes_tensor_parallelism = called_otherwise("sharding/2d-mesh", gathers_tensor_parallel)
says_tp_replicates = mutant("sharding/2d-placements", remakes(only_in_two_axes(says_replicated)))
says_dp_cut_first = mutant("sharding/2d-full", remakes(only_in_two_axes(says_plainly_sharded)))
strides_by_one_axis = mutant("sharding/2d-full", remakes(strided_by_one))
says_dp_cut_first_when_uneven = mutant(
    "sharding/2d-full-uneven", remakes(only_in_two_axes(only_if_uneven(says_plainly_sharded)))
)
cuts_dp_first = mutant("sharding/2d-rows", remakes(only_in_two_axes(cut_by_dp_first)))
takes_any_mesh = called_otherwise("arguments/mesh-of-three-axes", over_the_first_axis)
ignores_the_group = called_otherwise("arguments/mesh-from-group", over_all_ranks)
sums_on_made_meshes = called_otherwise("arguments/trains-on-mesh-from-group", sums_over_made_meshes)
sums_on_made_hybrid_meshes = called_otherwise("arguments/trains-on-mesh-from-groups", sums_over_made_meshes)

#: A forward with other ranks' rows gives other numbers in any requirement.
ALSO_KILLED_BY = {
    **dict.fromkeys(("sums_on_made_meshes", "sums_on_made_hybrid_meshes", "ignores_the_group"), END_TO_END),
    "holds_the_next_ranks_rows": ("entry/", "lazy-init/"),
}
