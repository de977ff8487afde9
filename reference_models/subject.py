"""The reference as an ``Implementation``, by the vendors' door: the only file here that knows the harness."""

from __future__ import annotations

from typing import Any

from torch import nn

from harness import __version__
from harness.vendor import CORE, Feature, GroupState, Implementation, Introspection, ParameterOwner, Strategies
from reference_models import fsdp, one_page
from reference_models.fsdp.modules.lazy_init import lazy_init
from reference_models.fsdp.modules.managed import managed_buffers, managed_modules, managed_parameters
from reference_models.fsdp.modules.state import ModuleState, own_state


def _states_managed(module: nn.Module) -> tuple[list[Any], list[Any]]:
    modules = managed_modules([module])
    return [parameter for parameter, _ in managed_parameters(modules)], managed_buffers(modules)


def _owners(module: nn.Module) -> list[ParameterOwner]:
    owned = managed_parameters(managed_modules([module]))
    return [ParameterOwner(first.module, first.name, tuple(rest)) for _, (first, *rest) in owned]


def _lazy_init(module: nn.Module) -> None:
    lazy_init(own_state(module))


def _states(root: nn.Module) -> list[GroupState]:
    return [_group_state(state) for state in own_state(root).tree.states]


def _group_state(state: ModuleState) -> GroupState:
    names = frozenset(parameter.name for group in state.groups for parameter in group.parameters)
    return GroupState(state.modules[0], bool(state.is_root), state.name, names)


def _shard_by_policy(
    module: nn.Module, policy: Any = None, strategy: str = "FULL_SHARD", mesh: Any = None, **options: Any
) -> nn.Module:
    return fsdp.shard_by_policy(module, policy, fsdp.ShardingStrategy[strategy], mesh, **options)


implementation = Implementation(
    name="reference",
    version=__version__,
    claims=frozenset(Feature),
    fully_shard=fsdp.fully_shard,
    module_class=fsdp.FSDPModule,
    mixed_precision_policy=fsdp.MixedPrecisionPolicy,
    offload_policy=fsdp.OffloadPolicy,
    cpu_offload_policy=fsdp.CPUOffloadPolicy,
    register_forward_method=fsdp.register_fsdp_forward_method,
    share_comm_ctx=fsdp.share_comm_ctx,
    replicate=fsdp.replicate,
    replicate_fsdp=fsdp.replicate,
    checkpoint=fsdp.checkpoint,
    shard_placement_result=fsdp.ShardPlacementResult,
    shard_mesh_info=fsdp.sharding_mesh,
    data_parallel_mesh_dims=fsdp.DataParallelMeshDims,
    strategies=Strategies(
        shard=_shard_by_policy,
        module_policy=fsdp.ModuleWrapPolicy,
        set_state_dict_type=lambda module, kind: fsdp.set_state_dict_type(module, fsdp.StateDictType(kind)),
        state_dict_type=lambda module: fsdp.state_dict_type(module).value,
    ),
    introspection=Introspection(
        managed_modules=lambda module: managed_modules([module]),
        managed_states=_states_managed,
        parameter_owners=_owners,
        lazy_init=_lazy_init,
        states=_states,
    ),
)

#: The one to be read. Of what it claims, one thing fails: recomputing modules within a sharded one, not around it.
page = Implementation(
    name="one_page",
    version=__version__,
    claims=CORE - {Feature.UNEVEN_ROWS} | {Feature.MODULE_CLASS, Feature.RESHARD_AFTER_FORWARD},
    not_claimed={Feature.UNEVEN_ROWS: "rows that ranks do not divide are refused"},
    fully_shard=one_page.fully_shard,
    module_class=one_page.FSDPModule,
)
