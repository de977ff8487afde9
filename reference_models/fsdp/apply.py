"""``fully_shard`` and ``replicate``: take over a module's parameters, and make it an ``FSDPModule``.

``replicate`` is ``fully_shard`` on a mesh whose shard axis has size 1: nothing is cut, and gradients are all-reduced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Shard

from reference_models.fsdp.contract import check_free, check_names, claim
from reference_models.fsdp.fsdp_module import FSDPModule
from reference_models.fsdp.lazy_init import lazy_init
from reference_models.fsdp.managed import managed_buffers, managed_modules, managed_parameters, move
from reference_models.fsdp.mesh import DataMesh, replicating_mesh, sharding_mesh, smaller_mesh
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy
from reference_models.fsdp.offload import OffloadPolicy
from reference_models.fsdp.param import ManagedParameter
from reference_models.fsdp.param_group import ParameterGroup
from reference_models.fsdp.state import ModuleState

Modules = TypeVar("Modules", nn.Module, list[nn.Module])
Placement = Callable[[nn.Parameter], "Shard | None"]


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
) -> Modules:
    """Shard the parameters of ``module``, but for those of modules below it that are sharded already; in place.

    A list of modules is gathered together. Over a mesh of one axis all ranks share; over two, (replicate, shard), the
    ranks of a shard axis. ``reshard_after_forward``: True frees after forward, False after backward, an int keeps
    shards over groups of so many ranks, None is True except for the root. ``shard_placement_fn`` names the dim that a
    parameter is cut along (default 0). Parameters in ``ignored_params`` are left alone.

    Raises ValueError for what cannot be: a mesh of three axes, containers without forward, an int that does not divide
    the shard ranks, a parameter without dims; RuntimeError for a module that has been sharded or replicated before.
    """
    data = sharding_mesh(mesh)
    resharding, smaller = _resharding(reshard_after_forward, data)
    options = (mp_policy or MixedPrecisionPolicy(), offload_policy or OffloadPolicy(), frozenset(ignored_params or ()))
    return _apply(module, "fully_shard", FSDPModule, data, resharding, smaller, shard_placement_fn, *options)


def replicate(
    module: Modules,
    *,
    mesh: DeviceMesh | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[nn.Parameter] | None = None,
) -> Modules:
    """Keep whole parameters on every rank and all-reduce their gradients. Arguments and errors as ``fully_shard``."""
    options = (mp_policy or MixedPrecisionPolicy(), offload_policy or OffloadPolicy(), frozenset(ignored_params or ()))
    return _apply(module, "replicate", ReplicateModule, replicating_mesh(mesh), None, None, None, *options)


def _apply(
    module: Modules,
    function: str,
    kind: type[FSDPModule],
    data: DataMesh,
    resharding: bool | None,
    smaller: DataMesh | None,
    placement: Placement | None,
    precision: MixedPrecisionPolicy,
    offload: OffloadPolicy,
    ignored: frozenset[nn.Parameter],
) -> Modules:
    roots = _roots(module)
    names = _names(roots)
    check_free(roots, function)
    modules = managed_modules(roots, ignored)
    owned = managed_parameters(modules, ignored)
    _check_devices(owned, data)
    move((parameter for parameter, _ in owned), data.device)
    move(managed_buffers(modules), data.device)
    cut = [ManagedParameter(p, owners, data, _placement(p, placement), offload) for p, owners in owned]
    groups = [ParameterGroup(cut, data, precision, offload, smaller)] if cut else []
    state = ModuleState(roots, groups, precision, resharding, data.device, lazy_init)
    claim(roots, function, state)
    for managed in modules:
        managed.register_state_dict_pre_hook(lambda *_: state.reshard())
        managed.register_load_state_dict_pre_hook(lambda *_: state.reshard())
    state.attach()
    for root in roots:
        root.__class__ = _class_of(kind, type(root))
    check_names(names, _names(roots), function)
    return module


def _roots(module: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    """The modules to take over: of a list, those that are not inside another."""
    given = [module] if isinstance(module, nn.Module) else list(module)
    if not given:
        raise ValueError("fully_shard expects a module or a list of modules, got an empty list")
    for each in given:
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)) and type(each).forward is nn.Module.forward:
            raise ValueError(
                f"fully_shard does not support containers that do not implement forward: {type(each).__name__}; "
                "call it on the modules inside, as a list"
            )
    inside = {child for each in given for child in each.modules() if child is not each}
    return [each for each in given if each not in inside]


def _resharding(asked: bool | int | None, data: DataMesh) -> tuple[bool | None, DataMesh | None]:
    """Whether to free after forward, and the smaller mesh to keep shards over."""
    if asked is None or isinstance(asked, bool):
        return asked, None
    ranks = data.shard.size
    if not isinstance(asked, int):
        raise ValueError(
            f"reshard_after_forward should be a bool or an int representing the group size to reshard to, not {asked!r}"
        )
    if not 1 <= asked <= ranks or ranks % asked:
        raise ValueError(f"If passing reshard_after_forward as an int, it should be a factor of {ranks}, not {asked}")
    if asked == 1:
        warnings.warn("reshard_after_forward=1 keeps everything after forward, as False does", stacklevel=4)
        return False, None
    return True, None if asked == ranks else smaller_mesh(data, asked)


def _placement(parameter: nn.Parameter, placement: Placement | None) -> Shard:
    chosen = placement(parameter) if placement is not None else None
    if chosen is None:
        return Shard(0)
    if not isinstance(chosen, Shard):
        raise ValueError(f"Invalid shard_placement_fn result: expected None or Shard(dim), got {chosen!r}")
    return chosen


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
