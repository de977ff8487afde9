"""Implementations that mistake one mesh for another: that of a single parameter, or the axes named for data.

Right is: an expert that ranks 0 and 2 of four have is cut over these two, and its gradients 1 and 3 there average to 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from tests.mutants import name_of
from tests.mutants.hooking import each_gradient_once
from tests.mutants.making import called_otherwise, mutant, right, sums
from tests.mutants.modules.extensions_chapter import stale_instead_of_groups
from tests.mutants.modules.init_chapters import rebuilt, remakes, strided_by_one
from tests.mutants.modules.reshard_chapter import does_not_reshard_by_hand
from tests.mutants.numbers.parallel_chapter import backwards
from tests.mutants.numbers.replicas import never_meet

DIMS = "dp_mesh_dims"


def over_one_mesh(module: Any, **options: Any) -> Any:
    """Hear of no mesh in a placement, so that all is cut, and averaged, over all ranks."""
    return right.fully_shard(module, **{**options, "shard_placement_fn": lambda parameter: Shard(0)})


def knows_no_replicas(module: Any, **options: Any) -> Any:
    """Take a mesh for another one that shards over the same ranks."""
    mesh, choose = options.get("mesh"), options.get("shard_placement_fn")
    answers = [choose(parameter) for parameter in module.parameters()] if choose else []
    if mesh is not None and mesh.ndim == 2 and any(hasattr(answer, "mesh_info") for answer in answers):
        raise ValueError("shards over the same ranks must be on one mesh")
    return right.fully_shard(module, **options)


def turned_stacks(parameter: DTensor) -> Tensor:
    """Holds the rows of every expert in a stack the other way round."""
    return rebuilt(parameter, parameter.to_local().flip(1)) if parameter.dim() == 3 else parameter


def scaled_after(factor: Callable[[DTensor], float]) -> Callable[[nn.Module], None]:
    """A change to each module: gradients are multiplied once they are reduced."""
    return each_gradient_once(lambda parameter: parameter.grad.mul_(factor(parameter)))


def where_alone(add: Callable[[Tensor, Tensor], object]) -> Callable[[nn.Module], None]:
    """A change to each module: a rank that shards alone is given its sum of gradients and what it had before that."""

    def change(parameter: Any) -> None:
        kept, before = getattr(parameter, "kept", (None, None))
        if parameter.device_mesh.size() == 1 and parameter.grad is kept:
            add(parameter.grad, before)
        parameter.kept = (parameter.grad, parameter.grad.clone())

    return each_gradient_once(change)


def share_of_tp(parameter: DTensor) -> float:
    """1 / 2 where two tp ranks share a layer."""
    return 0.5 if "tp" in (parameter.device_mesh.mesh_dim_names or ()) else 1.0


def does_nothing(method: str) -> Callable[[Any], None]:
    """A change to each module: one of its methods has no effect."""
    return lambda module: setattr(module, method, lambda *_, **__: None)


def with_names(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """A ``fully_shard`` that receives other data axes."""

    def fully_shard(module: Any, **options: Any) -> Any:
        if DIMS not in options:
            return right.fully_shard(module, **options)
        if options[DIMS].shard is None:
            options["reshard_after_forward"] = True
        return right.fully_shard(module, **{**options, DIMS: change(options[DIMS])})

    return fully_shard


def exchanged(dims: Any) -> Any:
    """To shard what should replicate, and the other way round."""
    return right.data_parallel_mesh_dims(shard=dims.replicate, replicate=dims.shard)


def some_names(shard: Any = None, replicate: Any = None) -> Any:
    """Name an axis where none is named."""
    return right.data_parallel_mesh_dims(shard=shard if shard or replicate else "dp", replicate=replicate)


def takes_plain_parameters(module: nn.Module, **options: Any) -> Any:
    """Shard plain parameters as if no axes had been named."""
    if not all(isinstance(parameter, DTensor) for parameter in module.parameters()):
        options.pop(DIMS, None)
    return right.fully_shard(module, **options)


def ignores_placements(module: nn.Module, **options: Any) -> Any:
    """Cut nothing, whatever is said of how to."""
    options.pop("shard_placement_fn", None)
    return right.fully_shard(module, **options)


def always_reshards_experts(module: nn.Module, **options: Any) -> Any:
    """Free what has a mesh of its own after forward, whatever was asked for."""
    if "shard_placement_fn" in options:
        options["reshard_after_forward"] = True
    return right.fully_shard(module, **options)


def sums_replicas(module: nn.Module, **options: Any) -> Any:
    """Sum over axes that are named."""
    net = right.replicate_fsdp(module, **options)
    if DIMS in options:
        scaled_after(lambda parameter: float(parameter.device_mesh.size()))(net)
    return net


one_mesh_for_all = called_otherwise("parameter-mesh/layout", over_one_mesh)
stacks_backwards = mutant("parameter-mesh/stacked-layout", remakes(turned_stacks))
#: 1 / 2 for an expert that two of four ranks have.
averages_experts_over_all = mutant(
    "parameter-mesh/training", scaled_after(lambda parameter: parameter.device_mesh.size() / dist.get_world_size())
)
#: 1 / 2 for an expert in a stack.
averages_stacks_over_all = mutant(
    "parameter-mesh/stacked-training", scaled_after(lambda parameter: 0.5 if parameter.dim() == 3 else 1.0)
)
refuses_experts_beside_replicas = called_otherwise("parameter-mesh/replicas", knows_no_replicas)
stale_groups_of_meshes = called_otherwise("parameter-mesh/groups", stale_instead_of_groups)
experts_are_freed = called_otherwise("parameter-mesh/after-forward", always_reshards_experts)
experts_stay_full = mutant("parameter-mesh/by-hand", does_not_reshard_by_hand)
always_reduces_experts = mutant("parameter-mesh/accumulation", does_nothing("set_requires_gradient_sync"))
doubles_where_alone = mutant("parameter-mesh/adds", where_alone(lambda found, before: found.add_(before)))
keeps_the_last_where_alone = mutant("interactions/one-rank", where_alone(lambda found, before: found.sub_(before)))
takes_two_for_all = called_otherwise("parameter-mesh/descriptions", over_one_mesh)
forgets_the_gather = mutant("parameter-mesh/own-gather", does_nothing("set_custom_all_gather"))
forgets_the_hook = mutant("parameter-mesh/own-hook", does_nothing("set_all_reduce_hook"))
exchanges_names = called_otherwise("spmd-mesh/layout", with_names(exchanged))
exchanges_hybrid_names = called_otherwise("spmd-mesh/layout-hybrid", with_names(exchanged))
named_tp_backwards = mutant("spmd-mesh/layout-tp", remakes(backwards))
counts_one_cut = mutant("spmd-mesh/layout-tp", remakes(strided_by_one))
two_names_backwards = mutant("spmd-mesh/two-names", remakes(backwards))
sums_over_names = mutant("spmd-mesh/training", sums)
named_replicas_sum = replace(right, name=name_of("spmd-mesh/replicate"), replicate_fsdp=sums_replicas)
named_replicas_never_meet = mutant("spmd-mesh/training-hybrid", never_meet)
averages_over_nameless_axes = mutant("spmd-mesh/training-tp", scaled_after(share_of_tp))
stale_groups_of_names = called_otherwise("spmd-mesh/groups", stale_instead_of_groups)
leaves_unused_without = mutant("spmd-mesh/unused", does_nothing("set_reduce_scatter_unused_params"))
names_an_axis_itself = replace(right, name=name_of("spmd-mesh/refuses-names"), data_parallel_mesh_dims=some_names)
takes_plain = called_otherwise("spmd-mesh/refuses-parameters", takes_plain_parameters)
cuts_no_replicas = called_otherwise("spmd-mesh/refuses-placement", ignores_placements)

RAISES = ("refuses_experts_beside_replicas",)
ALSO_KILLED_BY = {
    "forgets_the_gather": ("registration/repeated",),  # counts gathers by one of the user's own
    "forgets_the_hook": ("reduction/hook",),
    "averages_over_nameless_axes": ("tensor-parallel/",),  # which trains on axes without names for data
}
