"""torch's own composable FSDP as an ``Implementation``: the worked example of what a vendor writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn as nn
from torch.distributed import fsdp
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed._composable.replicate import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_fsdp
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_init, _fsdp_param_group

from harness.vendor.api import GroupState, Implementation, Introspection, ParameterOwner
from harness.vendor.features import Feature, lacking


def _managed_modules(module: nn.Module) -> list[nn.Module]:
    return list(_fsdp_init._get_managed_modules((module,)))


def _managed_states(module: nn.Module) -> tuple[list[Any], list[Any]]:
    return _fsdp_init._get_managed_states(_managed_modules(module))


def _parameter_owners(module: nn.Module) -> list[ParameterOwner]:
    parameters, _ = _managed_states(module)
    return [_owner(info) for info in _fsdp_param_group._get_param_module_infos(parameters, (module,))]


def _owner(info: Any) -> ParameterOwner:
    shared = zip(info.shared_modules, info.shared_param_names, strict=True)
    return ParameterOwner(info.module, info.param_name, tuple(shared))


def _lazy_init(module: nn.Module) -> None:
    _state(module)._lazy_init()


def _states(root: nn.Module) -> list[GroupState]:
    module_of = {id(_state(module)): module for module in root.modules() if isinstance(module, fsdp.FSDPModule)}
    return [_group_state(module_of[id(state)], state) for state in _state(root)._state_ctx.all_states]


def _group_state(module: nn.Module, state: Any) -> GroupState:
    groups = _groups(state)
    names = frozenset(parameter._param_fqn for group in groups for parameter in group.fsdp_params)
    return GroupState(module, bool(state._is_root), groups[0]._module_fqn if groups else None, names)


def _groups(state: Any) -> list[Any]:
    """The state's parameter groups; torch before 2.12 has one or none, under another name."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def _state(module: nn.Module) -> Any:
    return fsdp.fully_shard.state(module)  # type: ignore[attr-defined]


def _shard_mesh_info(mesh: Any) -> Any:
    return _fsdp_common.FSDPMeshInfo(mesh, shard_mesh_dim=0)


_functions = Implementation(
    name="torch",
    version=torch.__version__,
    claims=frozenset(),
    fully_shard=fsdp.fully_shard,
    module_class=fsdp.FSDPModule,
    mixed_precision_policy=fsdp.MixedPrecisionPolicy,
    offload_policy=fsdp.OffloadPolicy,
    cpu_offload_policy=fsdp.CPUOffloadPolicy,
    register_forward_method=fsdp.register_fsdp_forward_method,
    share_comm_ctx=getattr(fsdp, "share_comm_ctx", None),  # torch 2.10
    replicate=replicate,
    replicate_fsdp=replicate_fsdp,
    shard_placement_result=getattr(_fsdp_common, "ShardPlacementResult", None),  # torch 2.12
    shard_mesh_info=_shard_mesh_info,
    data_parallel_mesh_dims=getattr(fsdp, "DataParallelMeshDims", None),  # torch 2.12
    checkpoint=checkpoint,
    introspection=Introspection(
        managed_modules=_managed_modules,
        managed_states=_managed_states,
        parameter_owners=_parameter_owners,
        lazy_init=_lazy_init,
        states=_states,
    ),
)

#: What this version of torch has not got, and why.
_not_claimed = {
    feature: f"torch {torch.__version__} has no {missing.removeprefix('Implementation.')}"
    for feature in Feature
    if (missing := lacking(_functions, feature)) is not None
}
_not_claimed[Feature.WRAP_POLICY] = "composable FSDP has no policies and strategies; FullyShardedDataParallel had"
if Feature.RESET in _not_claimed:  # both came with torch 2.13
    _not_claimed[Feature.PARTIAL_GROUPS] = f"torch {torch.__version__} runs lists of modules whole"

implementation = replace(_functions, claims=frozenset(Feature) - set(_not_claimed), not_claimed=_not_claimed)
