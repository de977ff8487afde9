"""What an implementation can claim, what each claim takes, and bundles of claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from harness.data.kinds import StringEnum


class Feature(StringEnum):
    """One thing an implementation can claim. The value is the stable name that records and pages show."""

    FULLY_SHARD = "fully_shard"
    # What may be sharded, and what sharded parameters are.
    UNEVEN_ROWS = "uneven rows"
    ROW_LAYOUT = "torch's row layout"
    DTENSORS = "DTensor parameters"
    PLAIN_FORWARD = "plain tensors in forward"
    MODULE_LISTS = "lists of modules"
    MODULE_CLASS = "FSDPModule"
    CONVERSION = "conversion after sharding"
    SHARD_PLACEMENT = "shard_placement_fn"
    IGNORED_PARAMS = "ignored_params"
    META_DEVICE = "meta device"
    EXTENSIONS = "all-gather extensions"
    FORWARD_METHOD = "register_fsdp_forward_method"
    PARTIAL_GROUPS = "module lists run in part"
    # Meshes.
    HSDP = "HSDP"
    TENSOR_PARALLEL = "tensor parallel"
    MESH_FROM_GROUP = "DeviceMesh.from_group"
    PARAMETER_MESH = "ShardPlacementResult"
    SPMD_MESH = "dp_mesh_dims"
    # Dtypes and devices.
    OTHER_DTYPES = "parameters of other dtypes than float32"
    MIXED_PRECISION = "mixed precision"
    INPUT_CASTING = "casting of inputs"
    OUTPUT_DTYPE = "output_dtype"
    DTYPE_OVERRIDE = "param_dtype_override_fn"
    CPU_OFFLOAD = "CPU offload"
    # When parameters are whole, and what is communicated.
    RESHARD_AFTER_FORWARD = "reshard_after_forward"
    RESHARD_TO_GROUP = "reshard_after_forward=int"
    UNSHARD = "unshard and reshard"
    UNSHARD_IN_BACKWARD = "set_unshard_in_backward"
    KEPT_STORAGE = "set_keep_unsharded_storage"
    RECURSE = "recurse="
    ONE_MESSAGE = "one message per group"
    PREFETCH = "explicit prefetch"
    SHARED_CONTEXT = "share_comm_ctx"
    CUSTOM_COLLECTIVES = "custom collectives"
    GROUP_MEMORY = "memory from the process group"
    SEPARATE_GROUP = "separate reduce-scatter group"
    INPUT_BUFFERS = "reduce-scatter input buffers"
    OPTIMIZER_EVENT = "event after the optimizer"
    # Gradients.
    ACCUMULATION = "gradient accumulation"
    LAST_BACKWARD = "set_is_last_backward"
    MANUAL_FINALIZATION = "set_manual_backward_finalization"
    DIVIDE_FACTOR = "gradient divide factor"
    FORCE_SUM = "forced sum reduction"
    ALL_REDUCE_HOOK = "all-reduce hook"
    NONE_FOR_UNUSED = "no gradient for what is unused"
    UNUSED_PARAMETERS = "reduction of unused parameters"
    RESET = "reset after an exception"
    # State, and what else there is.
    STATE_DICT = "state dict"
    INTROSPECTION = "introspection"
    REPLICATE = "replicate"
    REPLICATE_FSDP = "replicate as FSDPModule"
    CHECKPOINT = "checkpoint"
    WRAP_POLICY = "wrap policies and sharding strategies"


#: The attributes of ``Implementation`` without which a claim is empty.
NEEDS: Mapping[Feature, tuple[str, ...]] = {
    **dict.fromkeys(Feature, ("fully_shard",)),
    Feature.MODULE_CLASS: ("module_class",),
    Feature.MIXED_PRECISION: ("mixed_precision_policy",),
    Feature.INPUT_CASTING: ("mixed_precision_policy",),
    Feature.OUTPUT_DTYPE: ("mixed_precision_policy",),
    Feature.DTYPE_OVERRIDE: ("mixed_precision_policy",),
    Feature.CPU_OFFLOAD: ("cpu_offload_policy", "offload_policy"),
    Feature.REPLICATE: ("replicate",),
    Feature.REPLICATE_FSDP: ("replicate_fsdp",),
    Feature.CHECKPOINT: ("checkpoint",),
    Feature.WRAP_POLICY: ("strategies",),
    Feature.PARAMETER_MESH: ("shard_placement_result", "shard_mesh_info"),
    Feature.SPMD_MESH: ("data_parallel_mesh_dims",),
    Feature.FORWARD_METHOD: ("register_forward_method",),
    Feature.SHARED_CONTEXT: ("share_comm_ctx",),
    Feature.INTROSPECTION: ("introspection",),
}

#: The method of sharded modules without which a claim is empty.
NEEDS_METHOD: Mapping[Feature, str] = {
    Feature.UNSHARD: "unshard",
    Feature.UNSHARD_IN_BACKWARD: "set_unshard_in_backward",
    Feature.KEPT_STORAGE: "set_keep_unsharded_storage",
    Feature.ACCUMULATION: "set_requires_gradient_sync",
    Feature.LAST_BACKWARD: "set_is_last_backward",
    Feature.MANUAL_FINALIZATION: "set_manual_backward_finalization",
    Feature.PREFETCH: "set_modules_to_forward_prefetch",
    Feature.DIVIDE_FACTOR: "set_gradient_divide_factor",
    Feature.FORCE_SUM: "set_force_sum_reduction_for_comms",
    Feature.ALL_REDUCE_HOOK: "set_all_reduce_hook",
    Feature.CUSTOM_COLLECTIVES: "set_custom_all_gather",
    Feature.GROUP_MEMORY: "set_allocate_memory_from_process_group_for_comm",
    Feature.UNUSED_PARAMETERS: "set_reduce_scatter_unused_params",
    Feature.INPUT_BUFFERS: "set_reduce_scatter_max_input_buffers",
    Feature.SEPARATE_GROUP: "set_separate_reduce_scatter_group",
    Feature.RESET: "reset_iter_state",
    Feature.OPTIMIZER_EVENT: "set_post_optim_event",
}

#: Training and saving as torch's FSDP2 does, whatever the rows; the least that a page says something about.
CORE = frozenset({
    Feature.FULLY_SHARD, Feature.UNEVEN_ROWS, Feature.OTHER_DTYPES, Feature.DTENSORS, Feature.ROW_LAYOUT,
    Feature.NONE_FOR_UNUSED, Feature.STATE_DICT,
})  # fmt: skip
#: Everything in torch's FSDP2, without what only FullyShardedDataParallel had.
TORCH_FSDP2 = frozenset(Feature) - {Feature.WRAP_POLICY}


def lacking(implementation: Any, feature: Feature) -> str | None:
    """What an ``Implementation`` would have to have for ``feature``, as ``Implementation.x``; None if it is there."""
    policy = implementation.mixed_precision_policy
    if feature is Feature.DTYPE_OVERRIDE and policy is not None and not _takes(policy, feature.value):
        return f"Implementation.mixed_precision_policy({feature.value}=)"
    method = NEEDS_METHOD.get(feature)
    if method is not None and not hasattr(implementation.module_class, method):
        return f"Implementation.module_class.{method}"
    missing = [name for name in NEEDS[feature] if getattr(implementation, name) is None]
    return f"Implementation.{missing[0]}" if missing else None


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(one.name == name or one.kind is one.VAR_KEYWORD for one in parameters)
