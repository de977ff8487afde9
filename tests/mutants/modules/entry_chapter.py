"""Implementations that change too much of what they are given, refuse what they should take, or take what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.placement_types import Shard

from harness.vendor import Implementation
from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.making import FullyShard, before, called_otherwise, modules_of, mutant, right
from tests.mutants.modules.partial_chapter import lists

assert reference.fully_shard is not None
reference_fully_shard: FullyShard = reference.fully_shard


def unless(what: Callable[[Any], bool]) -> FullyShard:
    """A ``fully_shard`` that lets modules pass as they are which are such."""

    def fully_shard(module: Any, **options: Any) -> Any:
        return module if what(module) else right.fully_shard(module, **options)

    return fully_shard


def refuse_if(requirement: str, what: Callable[[Any], bool]) -> Implementation:
    """torch's implementation, which refuses modules that are such."""

    def change(module: Any, options: dict[str, Any]) -> None:
        if what(module):
            raise ValueError("this module cannot be sharded")

    return before(requirement, change)


def slices_itself(module: Any) -> None:
    """A slice of the module is the module."""
    if isinstance(module, nn.Sequential):
        kind: Any = type(module)
        module.__class__ = type(kind.__name__, (kind,), {"__getitem__": lambda self, index: _item(self, index)})


def _item(module: Any, index: Any) -> Any:
    return module if isinstance(index, slice) else nn.Sequential.__getitem__(module, index)


def inner_too(modules: list[Any], **options: Any) -> Any:
    """Of a list, what lies within others is sharded by itself first."""
    outer = [each for each in modules if not any(each in list(other.children()) for other in modules)]
    for module in (each for each in modules if each not in outer):
        right.fully_shard(module, **options)
    right.fully_shard(outer, **options)
    return modules


def over_two_axes(module: Any, options: dict[str, Any]) -> None:
    """Without a mesh, make one of two axes."""
    if "mesh" not in options:
        size = torch.distributed.get_world_size()
        options["mesh"] = init_device_mesh("cpu", (1, size), mesh_dim_names=("replicate", "shard"))


def bare(module: Any) -> bool:
    """Whether it is a container without forward."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict))


def copies_itself(module: Any) -> None:
    """A deep copy is the module."""
    module.__deepcopy__ = lambda memo: module


def ignores_scalars(module: Any, options: dict[str, Any]) -> None:
    """Leave parameters without dims alone."""
    scalars = {parameter for parameter in module.parameters() if parameter.dim() == 0}
    options["ignored_params"] = {*(options.get("ignored_params") or ()), *scalars}


def names_axes(module: Any, options: dict[str, Any]) -> None:
    """Of axes that have no names, take the first."""
    mesh = options["mesh"]
    if mesh.ndim == 2 and not mesh.mesh_dim_names:
        options["mesh"] = init_device_mesh("cpu", tuple(mesh.shape), mesh_dim_names=("a", "b"))["a"]


def divides_again(module: Any, **options: Any) -> Any:
    """Sharding a sharded module once more divides its gradients once more."""
    if not isinstance(module, right.module_class):
        return right.fully_shard(module, **options)
    module.set_gradient_divide_factor(float(options["mesh"].size()) ** 2)
    return module


def first_alone(modules: list[Any], **options: Any) -> Any:
    """Of a list, the first module is sharded."""
    right.fully_shard(modules[0], **options)
    return modules


def hooks_first(module: Any, **options: Any) -> Any:
    """A hook is there before the call is refused, and stays."""
    for each in modules_of(module):
        each.register_forward_hook(lambda *_: None)
    return right.fully_shard(module, **options)


def class_first(module: Any, **options: Any) -> Any:
    """The class is another before the call is refused, and stays."""
    if isinstance(module, nn.Linear) and not isinstance(module, right.module_class):
        module.__class__ = type("Sharded", (type(module),), {})
    return right.fully_shard(module, **options)


def first_parameter_first(module: Any, **options: Any) -> Any:
    """The first parameter is another when a later one is refused."""
    owner = next(each for each in module.modules() if each._parameters)
    name, first = next(iter(owner._parameters.items()))
    try:
        return reference_fully_shard(module, **options)
    except (ValueError, NotImplementedError):
        owner._parameters[name] = nn.Parameter(first.detach())
        raise


def one_before_the_other(modules: list[Any], **options: Any) -> Any:
    """A module that is in a list twice is sharded before it is refused."""
    if len({*modules}) < len(modules):
        right.fully_shard(modules[:1], **options)
    return right.fully_shard(modules, **options)


def places(requirement: str, read: Callable[[Any, Any], Any]) -> Implementation:
    """torch's implementation, which reads what shard_placement_fn says of a parameter in another way."""

    def change(module: Any, options: dict[str, Any]) -> None:
        asked = options.get("shard_placement_fn")
        if asked is not None:
            options["shard_placement_fn"] = lambda parameter: read(parameter, asked(parameter))

    return before(requirement, change)


def reads_memory(module: Any, options: dict[str, Any]) -> None:
    """Read parameters in the order in which they lie in memory."""
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None and not parameter.is_contiguous():
                stride = torch.empty(parameter.shape).stride()
                owner._parameters[name] = nn.Parameter(parameter.detach().as_strided(parameter.shape, stride).clone())


def drops_remainders(module: Any, options: dict[str, Any]) -> None:
    """Columns beyond what ranks divide are lost."""
    if "shard_placement_fn" in options:
        for parameter in module.parameters():
            parameter.data[..., parameter.size(-1) // 2 * 2 :] = 0
        del options["shard_placement_fn"]


#: Give some of a list back.
gives_fewer_back = called_otherwise(
    "entry/given-back", lists(lambda modules, **options: right.fully_shard(modules, **options)[1:])
)
#: Put something of its own into the module.
adds_a_module = mutant("entry/names", lambda module: module.add_module("sharded", nn.Identity()))
#: Every parameter needs a gradient.
needs_all_gradients = mutant("entry/needs-gradients", lambda module: module.requires_grad_(True))
slices_are_itself = mutant("entry/slices", slices_itself)
shards_inner_too = called_otherwise("entry/nested-in-a-list", lists(inner_too))
refuses_containers = refuse_if("entry/containers-with-forward", bare)
shards_over_two_axes = before("entry/default-mesh", over_two_axes)
refuses_empty = refuse_if("entry/no-parameters", lambda module: not list(module.parameters()))
shards_again = called_otherwise("refusals/twice", divides_again)
passes_containers = called_otherwise("refusals/containers", unless(bare))
copies_are_itself = mutant("refusals/deepcopy", copies_itself)
leaves_scalars = before("refusals/scalars", ignores_scalars)
makes_up_names = before("refusals/nameless-axes", names_axes)
#: Dims that there are not become the first.
guesses_dims = places(
    "refusals/dims", lambda parameter, placement: placement if placement.dim < parameter.dim() else Shard(0)
)
takes_any_placement = places(
    "refusals/placements", lambda parameter, placement: placement if isinstance(placement, Shard) else None
)
lists_are_no_root = called_otherwise("refusals/list-as-root", lists(first_alone))
keeps_memory_order = before("refusals/not-contiguous", reads_memory)
loses_remainders = before("refusals/uneven-columns", drops_remainders)
leaves_its_hook = called_otherwise("refusals/leaves-as-it-was", hooks_first)
leaves_its_class = called_otherwise("refusals/leaves-as-it-was", class_first)
leaves_half_a_list = called_otherwise("refusals/leaves-as-it-was", lists(one_before_the_other))
leaves_its_parameter = replace(
    reference, name=name_of("refusals/leaves-other-parameters"), fully_shard=first_parameter_first
)
#: Convert all parameters to the dtype of the first.
converts_all = before("refusals/two-dtypes", lambda module, options: module.to(next(module.parameters()).dtype))

#: They refuse what they should take.
RAISES = ("refuses_containers", "refuses_empty")
