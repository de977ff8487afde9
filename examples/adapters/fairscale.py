"""fairscale's FullyShardedDataParallel, which wraps: here the module itself becomes one, so that names stay."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

os.environ["ENABLE_NCCL_BASE_COLLECTIVES"] = "0"  # gloo scatters no matrices
from fairscale.nn.data_parallel import fully_sharded_data_parallel as library

from fsdp_conformance import Feature, Implementation

FSDP = library.FullyShardedDataParallel


def fully_shard(module: nn.Module, *, mesh: DeviceMesh | None = None, reshard_after_forward: bool = True) -> nn.Module:
    """Wrap the module; then give it what the wrapper has, and its class, whose forward calls the module's own."""
    assert not isinstance(module, FSDP), "the module is sharded already"
    group = (mesh or init_device_mesh("cpu", (dist.get_world_size(),))).get_group()
    small = {"flatten_parameters": False, "bucket_cap_mb": 0, "compute_device": torch.device("cpu")}
    wrapper = FSDP(module, group, group, reshard_after_forward=reshard_after_forward, **small)
    kind, plain = type(module), vars(nn.Module())
    vars(module).update({name: value for name, value in vars(wrapper).items() if name not in plain})
    own = {name: getattr(kind, name) for name in ("named_parameters", "__getitem__") if hasattr(kind, name)}
    own["module"] = property(lambda self: partial(kind.forward, self))
    module.__class__ = type(f"FSDP{kind.__name__}", (FSDP, kind), own)
    return module


def whole(tensor: Tensor, parameter: Any) -> Tensor:
    """Ranks' parts end to end, of which the last are padded; what is not sharded, or whole just now, as it is."""
    size = getattr(parameter, "_orig_size", tensor.shape)
    if not getattr(parameter, "_is_sharded", False) or (tensor.shape == size and tensor.numel() > 1):
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.detach())
    return torch.cat(parts)[: size.numel()].view(size)


class _Idle(nullcontext[None]):
    """CUDA where there is none: each stream is this, and does nothing."""

    __call__ = __getattr__ = lambda self, *_: self


if not torch.cuda.is_available():
    library.torch = SimpleNamespace(**{**vars(torch), "cuda": _Idle()})
    Tensor.record_stream = lambda *_: None  # type: ignore[method-assign,assignment]

implementation = Implementation(
    name="fairscale",
    version=version("fairscale"),
    fully_shard=fully_shard,
    module_class=FSDP,
    claims=frozenset({Feature.FULLY_SHARD, Feature.UNEVEN_ROWS, Feature.MODULE_CLASS}),
    whole=whole,
    not_claimed={Feature.OTHER_DTYPES: "parameters have to be of float32, or all of float16"},
)
