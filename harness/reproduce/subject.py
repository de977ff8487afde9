"""For scripts: torch's own composable FSDP under the names that suites use, and the places where ranks run.

Only what a script mentions gets into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed import fsdp
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed._composable.replicate import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_fsdp
from torch.distributed.fsdp._fully_shard import _fsdp_common

from harness.torch_fsdp2 import (
    _lazy_init,
    _managed_modules,
    _managed_states,
    _parameter_owners,
    _shard_mesh_info,
    _states,
)
from harness.vendor import Introspection, StateDicts


class Torch:
    """torch's own composable FSDP."""

    fully_shard = staticmethod(fsdp.fully_shard)
    module_class = fsdp.FSDPModule
    mixed_precision_policy = fsdp.MixedPrecisionPolicy
    offload_policy = fsdp.OffloadPolicy
    cpu_offload_policy = fsdp.CPUOffloadPolicy
    register_forward_method = staticmethod(fsdp.register_fsdp_forward_method)
    share_comm_ctx = getattr(fsdp, "share_comm_ctx", None)
    replicate = staticmethod(replicate)
    replicate_fsdp = staticmethod(replicate_fsdp)
    checkpoint = staticmethod(checkpoint)
    shard_placement_result = getattr(_fsdp_common, "ShardPlacementResult", None)
    shard_mesh_info = staticmethod(_shard_mesh_info)
    data_parallel_mesh_dims = getattr(fsdp, "DataParallelMeshDims", None)
    state_dicts = StateDicts()
    introspection = Introspection(_managed_modules, _managed_states, _parameter_owners, _lazy_init, _states)


@dataclass(frozen=True)
class Place:
    """Where ranks run: on which kind of device, what they communicate by, and how their processes are started."""

    device_type: str
    process_group: str
    start_method: str = "spawn"
    imports: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def this_machine() -> Place:
    """The accelerator that torch finds, with the process group that torch has for it, or the CPU with gloo."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = found.type if found is not None else "cpu"
    groups: dict[str, Any] = torch.distributed.Backend.default_device_backend_map
    return Place(kind, groups.get(kind, kind), "forkserver" if kind == "cpu" else "spawn")


IMPLEMENTATION: Any = Torch
BACKEND: Any = this_machine()
