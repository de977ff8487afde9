"""megatron-fsdp's experimental fully_shard: DTensors over one flat buffer for each module and dtype.

Rows are cut where ranks' parts of the buffer end: one rank may hold all of a parameter, and none of another.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from megatron_fsdp import MixedPrecisionPolicy, experimental
from torch import nn
from torch.distributed import DeviceMesh, ReduceOp, get_world_size, init_device_mesh

from fsdp_conformance import CORE, Feature, Implementation


def fully_shard(module: nn.Module, *, mesh: DeviceMesh | None = None, **_: Any) -> nn.Module:
    """Shard what below ``module`` is not yet. It is always freed after forward."""
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = mesh or init_device_mesh(device.type, (get_world_size(),))
    kept = [*[experimental.Replicate()] * (mesh.ndim - 1), experimental.Flat()]
    sums = [*[experimental.Partial(ReduceOp.AVG)] * (mesh.ndim - 1), experimental.Flat()]
    placements = experimental.Placements(list(range(mesh.ndim)), parameter=kept, gradient=sums, optimizer=kept)
    dtype = getattr(next(module.parameters(), None), "dtype", None)  # of what optimizers have; or it is float32
    experimental.fully_shard(module, mesh, placements, MixedPrecisionPolicy(main_params_dtype=dtype))
    return module


class _Idle(nullcontext[None]):
    """CUDA where there is none: each stream, event and range is this, and does nothing."""

    __call__ = __getattr__ = lambda self, *_: self


if not torch.cuda.is_available():
    experimental.module.torch = SimpleNamespace(**{**vars(torch), "cuda": _Idle()})

_CLAIMED = CORE - {Feature.ROW_LAYOUT, Feature.NONE_FOR_UNUSED, Feature.STATE_DICT}
implementation = Implementation(
    name="megatron_fsdp",
    version=version("megatron-fsdp"),
    fully_shard=fully_shard,
    module_class=experimental.module.FsdpModule,
    claims=_CLAIMED | {Feature.HSDP, Feature.MODULE_CLASS},
    whole=None,  # DTensor.full_tensor() takes it that rows lie as torch lays them out
)
