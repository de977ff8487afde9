"""A sharding library, as thin as one can be: torch's composable FSDP, with one habit and one refusal of its own.

The habit: it asks the process group for sums, and never for averages. Of four ranks that bring [4], [8], [0] and [4]
for a gradient, torch asks for the average, [4]; here the sum comes, [16], and is divided by 4 afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh


def fully_shard(module: Any, *, mesh: DeviceMesh | None = None, **options: Any) -> Any:
    """Shard a module, or a list of modules, over one axis of ranks. Takes what torch's function of this name takes."""
    if mesh is not None and mesh.ndim == 2:
        # Say what you do not support. The suite asks for nothing that you disclaim, but your users will.
        raise ValueError(f"expected a mesh of one axis, got {mesh}: this library keeps no replicas of shards")
    sharded = fsdp.fully_shard(module, mesh=mesh, **options)
    modules: Sequence[nn.Module] = [module] if isinstance(module, nn.Module) else module
    for each in modules:
        if isinstance(each, fsdp.FSDPModule):
            each.set_force_sum_reduction_for_comms(True)
    return sharded
