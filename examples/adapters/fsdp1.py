"""torch's FullyShardedDataParallel, "FSDP1", as a library that shards in place: no wrapper, so that names stay.

The class FullyShardedDataParallel wraps. Its parts, which are not public, work on any module that carries their state.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed._composable_state import _insert_module_state
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import _init_utils, _runtime_utils
from torch.distributed.fsdp._common_utils import _FSDPState

from fsdp_conformance import Feature, Implementation


def fully_shard(module: nn.Module, *, mesh: DeviceMesh | None = None, reshard_after_forward: bool = True) -> nn.Module:
    """Do to ``module`` what FullyShardedDataParallel's constructor does to what it wraps."""
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = mesh or init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    device = torch.device(mesh.device_type)
    strategy = fsdp.ShardingStrategy.FULL_SHARD if reshard_after_forward else fsdp.ShardingStrategy.SHARD_GRAD_OP
    state = _FSDPState()
    _insert_module_state(module, state)
    _init_utils._init_ignored_module_states(state, module, None)
    _init_utils._init_device_handle(state, module, state._ignored_params, device)
    _init_utils._init_process_group_state(state, None, strategy, None, mesh)
    _init_utils._init_core_state(state, strategy, None, None, True, True, 1, 1)
    _init_utils._init_runtime_state(state)
    _init_utils._init_prefetching_state(state, fsdp.BackwardPrefetch.BACKWARD_PRE, False)
    _init_utils._init_buffer_state(state, module)
    _init_utils._init_extension(state, mesh)
    _init_utils._init_param_handle_from_module(state, module, device, None, False)
    _init_utils._init_state_dict_state(state)
    _runtime_utils._register_pre_forward_hook(state, module)
    _runtime_utils._register_post_forward_hook(state, module)
    _runtime_utils._register_root_pre_forward_hook(state, module)  # last, since it is put in front
    return module


implementation = Implementation(
    name="fsdp1",
    version=torch.__version__,
    fully_shard=fully_shard,
    claims=frozenset({Feature.FULLY_SHARD, Feature.UNEVEN_ROWS, Feature.OTHER_DTYPES}),
    whole=None,  # a rank's part of a parameter is a stretch of its numbers, which may end within a row
    not_claimed={Feature.STATE_DICT: "state dicts of modules that FSDP1 does not wrap are not its own"},
)
