"""torchtitan's SimpleFSDP: parameters are DTensors, and reading one in a forward gathers it.

Besides torchtitan, importing it needs the packages spmd_types, tyro, docstring_parser and typeguard.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torchtitan.experiments.graph_trainer.simple_fsdp import MixedPrecisionPolicy, data_parallel

from harness.vendor import Feature, Implementation


def fully_shard(module: nn.Module, *, mesh: DeviceMesh | None = None, mp_policy: Any = None, **_: Any) -> nn.Module:
    """Shard what below ``module`` is not yet. When whole parameters are freed is up to autograd here."""
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),))
    return _parallel(module, mesh, "fully_shard" if mesh.ndim == 1 else "hybrid_shard", mp_policy)


def replicate(module: nn.Module, *, device_mesh: DeviceMesh) -> nn.Module:
    """The same without sharding."""
    return _parallel(module, device_mesh, "replicate", None)


def _parallel(module: nn.Module, mesh: DeviceMesh, mode: str, policy: Any) -> nn.Module:
    whole = {name for name, parameter in module.named_parameters() if not isinstance(parameter, DTensor)}
    data_parallel(module, mesh, mode, policy)
    for name, parameter in module.named_parameters():
        if name in whole:  # gradients are sums here: make averages of them
            parameter.register_hook(lambda gradient: gradient / mesh.size())
    return module


_CLAIMED = {Feature.FULLY_SHARD, Feature.MIXED_PRECISION, Feature.HSDP, Feature.STATE_DICT, Feature.META_DEVICE}
implementation = Implementation(
    name="simple_fsdp",
    version=version("torchtitan"),
    fully_shard=fully_shard,
    replicate=replicate,
    mixed_precision_policy=MixedPrecisionPolicy,
    claims=frozenset(_CLAIMED | {Feature.TENSOR_PARALLEL, Feature.REPLICATE}),
)
