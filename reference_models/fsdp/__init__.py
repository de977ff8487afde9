"""Composable FSDP, written to be read: torch's names and signatures, and the behaviour behind them.

Read in this order: ``sharding`` (arithmetic), ``mesh``, ``param`` (two forms), ``collectives``, ``param_group``,
``state``, ``lazy_init``, ``moments`` (four), ``apply``, ``options``, ``setters``, ``fsdp_module``.
"""

from reference_models.fsdp.apply import ReplicateModule, fully_shard, replicate
from reference_models.fsdp.checkpoint import checkpoint
from reference_models.fsdp.fsdp_module import FSDPModule, UnshardHandle, register_fsdp_forward_method, share_comm_ctx
from reference_models.fsdp.layout.mesh import sharding_mesh
from reference_models.fsdp.layout.spmd import DataParallelMeshDims
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy
from reference_models.fsdp.modules.finalizing import GradientReductionHandle
from reference_models.fsdp.offload import CPUOffloadPolicy, OffloadPolicy
from reference_models.fsdp.parameters.parameter_meshes import ShardPlacementResult
from reference_models.fsdp.policy import ModuleWrapPolicy, ShardingStrategy, shard_by_policy
from reference_models.fsdp.state_dict_type import StateDictType, set_state_dict_type, state_dict_type

__all__ = [
    "CPUOffloadPolicy",
    "DataParallelMeshDims",
    "FSDPModule",
    "GradientReductionHandle",
    "MixedPrecisionPolicy",
    "ModuleWrapPolicy",
    "OffloadPolicy",
    "ReplicateModule",
    "ShardPlacementResult",
    "ShardingStrategy",
    "StateDictType",
    "UnshardHandle",
    "checkpoint",
    "fully_shard",
    "register_fsdp_forward_method",
    "replicate",
    "set_state_dict_type",
    "shard_by_policy",
    "sharding_mesh",
    "share_comm_ctx",
    "state_dict_type",
]
