"""Implementations whose replicas drift, forget what they are, or talk too much.

Right is: whole parameters on every rank, and one all-reduce a module that gives all ranks the mean gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from harness.collective_trace.torch_names import all_gather
from harness.vendor import Implementation
from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.hooking import Change, each_gradient
from tests.mutants.making import right

right_fully_shard: Callable[..., Any] = right.fully_shard
right_replicate: Callable[..., Any] = right.replicate
right_replicate_fsdp: Callable[..., Any] = right.replicate_fsdp
assert reference.fully_shard is not None
assert reference.replicate_fsdp is not None
reference_fully_shard: Callable[..., Any] = reference.fully_shard
reference_replicate: Callable[..., Any] = reference.replicate_fsdp


def plain(requirement: str, replicate: Callable[..., Any]) -> Implementation:
    """torch's implementation with another ``replicate``."""
    return replace(right, name=name_of(requirement), replicate=replicate)


def dtensors(requirement: str, replicate_fsdp: Callable[..., Any]) -> Implementation:
    """torch's implementation with another ``replicate_fsdp``."""
    return replace(right, name=name_of(requirement), replicate_fsdp=replicate_fsdp)


def then(replicate: Callable[..., Any], change: Change) -> Callable[..., Any]:
    """Replicate, and change the module."""

    def changed(module: nn.Module, **options: Any) -> Any:
        replicate(module, **options)
        change(module)
        return module

    return changed


def prefixed(module: nn.Module) -> None:
    """Save under the names that a wrapper would give."""

    def rename(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            state[f"{prefix}module.{name.removeprefix(prefix)}"] = state.pop(name)

    module.register_state_dict_post_hook(rename)


def always_synchronises(module: Any) -> None:
    """Do not hear the switch."""
    module.set_requires_gradient_sync = lambda *_, **__: None


def once_is_enough(module: Any, **options: Any) -> Any:
    """Take a second call in silence."""
    return module if hasattr(module, "register_comm_hook") else right_replicate(module, **options)


def keeps_plain(module: nn.Module, mesh: Any = None, **options: Any) -> Any:
    """Replicate as the other function does, where no axes are named."""
    named = "dp_mesh_dims" in options
    return right_replicate_fsdp(module, mesh=mesh, **options) if named else right_replicate(module)


def doubled(parameter: Any) -> None:
    """The gradient of two ranks, summed."""
    parameter.grad *= 2


def shards_what_is_small(module: nn.Module, **options: Any) -> Any:
    """Shard what has no parameters of its own beside others."""
    return (right_replicate_fsdp if is_root(module) else right_fully_shard)(module, **options)


def shards_what_has_shards(module: nn.Module, **options: Any) -> Any:
    """The same, where something below is sharded, and the module is not the root."""
    is_between = any(isinstance(child, FSDPModule) for child in module.modules()) and not is_root(module)
    return (right_fully_shard if is_between else right_replicate_fsdp)(module, **options)


def shards_what_is_inside(module: nn.Module, **options: Any) -> Any:
    """The same, where no axes are named."""
    whole = is_root(module) or "dp_mesh_dims" in options
    return (reference_replicate if whole else reference_fully_shard)(module, **options)


def frees_after_forward(module: Any) -> None:
    """Go back to DTensors after forward; backward has them copied again."""
    module.register_forward_hook(lambda module, *_: module.reshard())


def is_root(module: nn.Module) -> bool:
    """Whether a module has parameters of its own beside others."""
    return any(True for _ in module.parameters(recurse=False)) and any(True for _ in module.children())


def unties(module: nn.Module, **options: Any) -> Any:
    """Give every place a weight of its own."""
    met: set[nn.Parameter] = set()
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            if parameter in met:
                each.register_parameter(name, nn.Parameter(parameter.detach().clone()))
            met.add(parameter)
    return right_replicate_fsdp(module, **options)


def prefetching_cuts_the_graph(module: Any) -> None:
    """What prefetches something passes no gradients on."""
    told_right = module.set_modules_to_forward_prefetch

    def tell(modules: list[Any]) -> None:
        told_right(modules)
        module.register_forward_pre_hook(lambda _, args: tuple(arg.detach() for arg in args))

    module.set_modules_to_forward_prefetch = tell


def counts_ranks(module: nn.Module) -> None:
    """Gather something before every forward."""

    def gather(*_: Any) -> None:
        all_gather(torch.empty(dist.get_world_size()), torch.ones(1))

    module.register_forward_pre_hook(gather)


def on_the_first_axis(module: nn.Module, mesh: Any = None, **options: Any) -> Any:
    """Take the first axis of a mesh that has several."""
    return right_replicate_fsdp(module, mesh=mesh[mesh.mesh_dim_names[0]] if mesh.ndim > 1 else mesh, **options)


def in_silence(module: nn.Module, **options: Any) -> Any:
    """Leave alone what is sharded, and say nothing."""
    return module if hasattr(module, "unshard") else right_replicate_fsdp(module, **options)


def what_is_inside(module: nn.Module, **options: Any) -> Any:
    """Replicate what is in a container."""
    containers = (nn.ModuleList, nn.ModuleDict)
    return right_replicate_fsdp(list(module.children()) if isinstance(module, containers) else module, **options)


def shards_where_told(module: nn.Module, dp_mesh_dims: Any = None, **options: Any) -> Any:
    """Shard over dims that are for shards."""
    if dp_mesh_dims is not None and dp_mesh_dims.shard is not None:
        return right_fully_shard(module, dp_mesh_dims=dp_mesh_dims, **options)
    return right_replicate_fsdp(module, dp_mesh_dims=dp_mesh_dims, **options)


def shards_beside_replicas(module: nn.Module, dp_mesh_dims: Any = None, **options: Any) -> Any:
    """Shard over dims that are for shards, where there are dims for replicas, too."""
    both = dp_mesh_dims is not None and dp_mesh_dims.shard is not None and dp_mesh_dims.replicate is not None
    return (reference_fully_shard if both else reference_replicate)(module, dp_mesh_dims=dp_mesh_dims, **options)


#: Leave everything alone.
never_average = plain("replicate/parity", lambda module, **options: module)
are_saved_as_wrapped = plain("replicate/state-dict", then(right_replicate, prefixed))
always_synchronise = plain("replicate/gradient-sync", then(right_replicate, always_synchronises))
are_replicated_twice = plain("replicate/once", once_is_enough)
are_no_dtensors = dtensors("replicate/dtensors", keeps_plain)
are_copied_twice = dtensors("replicate/kept-after-forward", then(right_replicate_fsdp, frees_after_forward))
sum_up = dtensors("replicate/dtensors-parity", then(right_replicate_fsdp, each_gradient(doubled)))
are_sharded_below_a_root = dtensors("replicate/mixed", shards_what_is_small)
belong_to_the_root = replace(
    right,
    name=name_of("replicate/managed"),
    introspection=replace(right.introspection, managed_modules=lambda module: list(module.modules())),
)
sum_up_beside_tp = dtensors("replicate/tensor-parallel", then(right_replicate_fsdp, each_gradient(doubled)))
are_untied = dtensors("replicate/routes", unties)
know_no_other_method = replace(
    right, name=name_of("replicate/other-method"), register_forward_method=lambda module, name: None
)
lose_gradients_by_prefetching = dtensors("replicate/prefetch", then(right_replicate_fsdp, prefetching_cuts_the_graph))
compute_in_full_precision = dtensors(
    "replicate/mixed-precision",
    lambda module, **options: right_replicate_fsdp(module, **{**options, "mp_policy": right.mixed_precision_policy()}),
)

dtensors_always_synchronise = dtensors(
    "replicate/dtensors-gradient-sync", then(right_replicate_fsdp, always_synchronises)
)
talk_too_much = dtensors("replicate/collectives", then(right_replicate_fsdp, counts_ranks))
take_the_first_axis = dtensors("replicate/refuses-meshes", on_the_first_axis)
leave_shards_in_silence = dtensors("replicate/refuses-sharded", in_silence)
look_into_containers = dtensors("replicate/refuses-containers", what_is_inside)
are_sharded_where_told = dtensors("replicate/refuses-shard-dims", shards_where_told)
# torch has this defect itself, so these start from the reference.
are_sharded_inside = replace(reference, name=name_of("replicate/nested"), replicate_fsdp=shards_what_is_inside)
are_sharded_inside_shards = dtensors("replicate/nested-in-shards", shards_what_has_shards)
are_sharded_beside_replicas = replace(
    reference, name=name_of("replicate/refuses-hybrid-dims"), replicate_fsdp=shards_beside_replicas
)

#: What is left alone is not replicated.
ALSO_KILLED_BY = {
    "never_average": ("grouping/replicated-children",),
    "belong_to_the_root": ("grouping/sharded-children",),
    "know_no_other_method": ("passes/forward-methods",),
}
RAISES = ("know_no_other_method",)
