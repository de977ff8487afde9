"""mindspore-ai/hyper-parallel on torch, from a checkout: parameters are of its own DTensor class and DeviceMesh."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

os.environ["HYPER_PARALLEL_PLATFORM"] = "torch"  # or it asks for MindSpore

import hyper_parallel as library
from hyper_parallel.core.fully_shard import api
from hyper_parallel.platform.torch.fully_shard import utils

from fsdp_conformance import CORE, Feature, Implementation, StateDicts


def fully_shard(module: nn.Module, *, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """Shard what below ``module`` is not yet, over the groups of torch's mesh."""
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),))
    groups = mesh.get_all_groups() if mesh.ndim > 1 else mesh.get_group()
    ranks = mesh.mesh.to(torch.int32) if mesh.ndim > 1 else None
    own = library.DeviceMesh.from_group(groups, mesh.device_type, ranks, mesh.mesh_dim_names)
    # To free after forward fails with torch 2.13: autograd takes what is gathered again for modified.
    options["reshard_after_forward"] = False
    return api.fully_shard(module, mesh=own, device=torch.device(mesh.device_type), **options)


library.SkipDTensorDispatch().__enter__()  # optimizers work on local tensors; users enter this around training

_CLAIMED = CORE - {Feature.UNEVEN_ROWS, Feature.STATE_DICT} | {Feature.HSDP, Feature.MIXED_PRECISION}
implementation = Implementation(
    name="hyper_parallel",
    fully_shard=fully_shard,
    module_class=api.HSDPModule,
    mixed_precision_policy=utils.MixedPrecisionPolicy,
    state_dicts=StateDicts(get_model_state_dict=api.get_model_state_dict),
    claims=_CLAIMED | {Feature.ACCUMULATION, Feature.PREFETCH, Feature.IGNORED_PARAMS},
    not_claimed={
        Feature.UNEVEN_ROWS: "fully_shard raises NotImplementedError for them",
        Feature.SHARD_PLACEMENT: "fully_shard takes shard_placement_fn, and ignores it",
        Feature.CPU_OFFLOAD: "it is from other devices than the CPU",
    },
    one_rank_per_process="meshes and groups are kept in class attributes",
)
