"""torchtitan's SimpleFSDP: parameters are DTensors, and reading one in a forward gathers it.

Besides torchtitan, importing it needs the packages spmd_types, tyro and docstring_parser.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torchtitan.experiments.graph_trainer import simple_fsdp

from fsdp_conformance import CORE, Feature, Implementation


def fully_shard(module: nn.Module, *, mesh: DeviceMesh | None = None, mp_policy: Any = None, **_: Any) -> nn.Module:
    """Shard what below ``module`` is not yet. When whole parameters are freed is up to autograd here."""
    return _parallel(module, mesh, "fully_shard", mp_policy)


def replicate(module: nn.Module, *, device_mesh: DeviceMesh | None = None) -> nn.Module:
    """The same without sharding."""
    return _parallel(module, device_mesh, "replicate", None)


def _parallel(module: nn.Module, mesh: DeviceMesh | None, mode: str, policy: Any) -> nn.Module:
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),))
    return simple_fsdp.data_parallel(module, mesh, "hybrid_shard" if mesh.ndim == 2 else mode, policy)


_CLAIMED = CORE | {Feature.MIXED_PRECISION, Feature.HSDP, Feature.META_DEVICE, Feature.TENSOR_PARALLEL}
implementation = Implementation(
    name="simple_fsdp",
    version=version("torchtitan"),
    fully_shard=fully_shard,
    replicate=replicate,
    mixed_precision_policy=simple_fsdp.MixedPrecisionPolicy,
    claims=_CLAIMED | {Feature.REPLICATE},
    sums_gradients=True,
    one_rank_per_process="all modules of a class are gathered over the mesh of the first",
)
