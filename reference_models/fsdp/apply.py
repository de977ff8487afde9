"""``fully_shard`` and ``replicate``: take over a module's parameters, and make it an ``FSDPModule``.

Two ranks, a ``Linear`` with weight rows [1 2 3 4]::

    fully_shard(net)    an FSDPLinear; weight is a DTensor placed (Shard(0),), local [1 2] on rank 0, [3 4] on rank 1
    replicate(net)      a ReplicateLinear; weight is a DTensor placed (Replicate(),), local [1 2 3 4] on both

``replicate`` is ``fully_shard`` on a mesh whose shard axis has size 1: nothing is cut, and gradients are all-reduced.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from reference_models.fsdp.contract import check_free, claim
from reference_models.fsdp.errors import NotAllowed, NothingGiven
from reference_models.fsdp.fsdp_module import FSDPModule
from reference_models.fsdp.layout.mesh import DataMesh, replicating_mesh, sharding_mesh, smaller_mesh
from reference_models.fsdp.layout.spmd import DataParallelMeshDims, check_spmd, spmd_mesh
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy
from reference_models.fsdp.modules.managed import managed_buffers, managed_modules, managed_parameters, move
from reference_models.fsdp.modules.moments import attach
from reference_models.fsdp.modules.state import ModuleState
from reference_models.fsdp.offload import OffloadPolicy
from reference_models.fsdp.options import DEFAULTS, GroupOptions
from reference_models.fsdp.parameters.param import ManagedParameter
from reference_models.fsdp.parameters.param_group import ParameterGroup
from reference_models.fsdp.parameters.parameter_meshes import Placement, by_mesh, check_meshes, cut_of, placed

Modules = TypeVar("Modules", nn.Module, list[nn.Module])


class ReplicateModule(FSDPModule):
    """What every replicated module is, besides what it was."""


def fully_shard(
    module: Modules,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Placement | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> Modules:
    """Shard the parameters of ``module``, but for those of modules below it that are sharded already; in place.

    A list of modules is gathered together. Over a mesh of one axis all ranks share; over two, (replicate, shard), the
    ranks of a shard axis. ``reshard_after_forward``: True frees after forward, False after backward, an int keeps
    shards over groups of so many ranks, None is True except for the root. ``shard_placement_fn`` names the dim that a
    parameter is cut along (default 0), and perhaps a mesh of its own. Parameters in ``ignored_params`` are left alone.
    ``dp_mesh_dims`` names the data axes of a mesh on which all parameters are DTensors already.

    Raises ValueError for what cannot be: a mesh of three axes, containers without forward, an int that does not divide
    the shard ranks, a parameter without dims; RuntimeError for a module that has been sharded or replicated before.
    """
    data = sharding_mesh(mesh) if dp_mesh_dims is None else spmd_mesh(mesh, dp_mesh_dims)
    if dp_mesh_dims is not None and type(reshard_after_forward) is int:
        raise NotImplementedError("reshard_after_forward as int is not supported with dp_mesh_dims: give a bool")
    options = (mp_policy or MixedPrecisionPolicy(), offload_policy or OffloadPolicy(), frozenset(ignored_params or ()))
    return _apply(module, "fully_shard", FSDPModule, data, reshard_after_forward, shard_placement_fn, *options)


def replicate(
    module: Modules,
    *,
    mesh: DeviceMesh | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> Modules:
    """Keep whole parameters on every rank and all-reduce their gradients. Arguments and errors as ``fully_shard``.

    What is copied for forward, which gathers nothing, is kept until backward.
    """
    if dp_mesh_dims is not None and dp_mesh_dims.shard_names:
        raise ValueError(f"replicate requires replicate-only dims in dp_mesh_dims, got shard={dp_mesh_dims.shard!r}")
    data = replicating_mesh(mesh) if dp_mesh_dims is None else spmd_mesh(mesh, dp_mesh_dims)
    options = (mp_policy or MixedPrecisionPolicy(), offload_policy or OffloadPolicy(), frozenset(ignored_params or ()))
    return _apply(module, "replicate", ReplicateModule, data, False, None, *options)


def _apply(
    module: Modules,
    function: str,
    kind: type[FSDPModule],
    data: DataMesh,
    reshard: bool | int | None,
    choose: Placement | None,
    precision: MixedPrecisionPolicy,
    offload: OffloadPolicy,
    ignored: frozenset[nn.Parameter],
) -> Modules:
    roots = _roots(module, function)
    names = _names(roots)
    check_free(roots, function)
    classes = [_class_of(kind, type(root)) for root in roots]
    modules = managed_modules(roots)
    owned = managed_parameters(modules, ignored)
    _check_devices(owned, data)
    if data.spmd is not None:
        check_spmd([(owners[0].name, parameter) for parameter, owners in owned], data.spmd)
    places = [placed(parameter, choose, data) for parameter, _ in owned]
    check_meshes([mesh for mesh, _ in places])
    cuts = [cut_of(one, owners[0].name, *place) for (one, owners), place in zip(owned, places, strict=True)]
    _check_reshard(reshard, data)
    policies = [precision.of(parameter) for parameter, _ in owned]
    move((parameter for parameter, _ in owned), data.device)
    move(managed_buffers(modules), data.device)
    managed = [
        ManagedParameter(*one, mesh, cut, offload, policy)
        for one, (mesh, _), cut, policy in zip(owned, places, cuts, policies, strict=True)
    ]
    groups = [ParameterGroup(part, on, precision, _options(reshard, on)) for on, part in by_mesh(managed)]
    state = ModuleState(roots, groups, precision, data.device)
    # From here on nothing is refused: a call that is leaves the modules as they were.
    for parameter in managed:
        parameter.register(parameter.sharded)
    claim(roots, function, state)
    for each in modules:
        each.register_state_dict_pre_hook(lambda *_: state.reshard())
        resharding = each.register_load_state_dict_pre_hook(lambda *_: state.reshard())
        hooks: Any = each._load_state_dict_pre_hooks
        hooks.move_to_end(resharding.id, last=False)  # before what cuts the entries
    attach(state)
    for root, made in zip(roots, classes, strict=True):
        root.__class__ = made
    assert names == _names(roots), f"{function} must not change the names of parameters and modules"
    return module


def _roots(module: nn.Module | Sequence[nn.Module], function: str) -> list[nn.Module]:
    """The modules to take over: of a list, those that are not inside another. Refuses containers and repetitions."""
    given = [module] if isinstance(module, nn.Module) else list(module)
    if not given:
        raise NothingGiven("fully_shard expects a module or a list of modules, got an empty list")
    for each in given:
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)) and type(each).forward is nn.Module.forward:
            raise ValueError(
                f"{function} expects a module with a forward, got a {type(each).__name__}, a container without: "
                "give it the modules inside, as a list"
            )
    if len(set(given)) < len(given):
        twice = next(type(each).__name__ for each in given if given.count(each) > 1)
        raise NotAllowed(f"{function} expects a module once in a list, got this {twice} again: leave one of them out")
    inside = {child for each in given for child in each.modules() if child is not each}
    return [each for each in given if each not in inside]


def _check_reshard(asked: bool | int | None, data: DataMesh) -> None:
    """Refuse what is neither a bool nor a factor of the mesh's ranks; warn of the factor 1."""
    if asked is None or isinstance(asked, bool):
        return
    _check_factor(asked, data)
    if asked == 1:
        warnings.warn("reshard_after_forward=1 keeps everything after forward, as False does", stacklevel=4)


def _options(asked: bool | int | None, data: DataMesh) -> GroupOptions:
    """With what to do after forward: of a number of ranks the smaller mesh, if it is smaller, to keep shards over."""
    if asked is None or isinstance(asked, bool):
        return DEFAULTS[asked]
    _check_factor(asked, data)
    return GroupOptions(smaller_mesh(data, asked)) if 1 < asked < data.shard.size else DEFAULTS[asked != 1]


def _check_factor(asked: int, data: DataMesh) -> None:
    if not isinstance(asked, int):
        raise ValueError(
            f"expected a bool or a number of ranks for reshard_after_forward, got {asked!r}: see fully_shard for both"
        )
    ranks = data.shard.size
    if not 1 <= asked <= ranks or ranks % asked:
        raise ValueError(f"expected a factor of the {ranks} shard ranks for reshard_after_forward, got {asked}")


def _check_devices(owned: Sequence[tuple[nn.Parameter, Any]], data: DataMesh) -> None:
    """Before anything is changed: DTensors must be on the mesh's device type."""
    for parameter, _ in owned:
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and mesh.device_type != data.mesh.device_type:
            raise ValueError(
                "Requires DTensor to have mesh of the same type as the FSDP mesh "
                f"but got {mesh.device_type} for DTensor and {data.mesh.device_type} for FSDP"
            )


def _names(roots: Sequence[nn.Module]) -> list[str]:
    return [name for root in roots for name, _ in (*root.named_parameters(), *root.named_modules())]


_classes: dict[tuple[type, type], type[nn.Module]] = {}


def _class_of(kind: type[FSDPModule], original: type[nn.Module]) -> type[nn.Module]:
    """``FSDPLinear`` for Linear, one class for all of them."""
    if (kind, original) not in _classes:
        name = kind.__name__.removesuffix("Module") + original.__name__
        _classes[kind, original] = type(name, (kind, original), {"__doc__": original.__doc__})
    return _classes[kind, original]
