"""The built-in backends that torch is asked about: NCCL where CUDA is, and the choice for this machine."""

from __future__ import annotations

import torch

from harness.vendor.api import Backend
from harness.vendor.backends import gloo


def _nccl_ranks() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


nccl = Backend(
    name="nccl",
    device_type="cuda",
    process_group="nccl",
    ranks=_nccl_ranks(),
    thread_ranks=64 if _nccl_ranks() else 0,
    visible_devices="CUDA_VISIBLE_DEVICES",  # as well for ROCm
)


def _automatic() -> Backend:
    """NCCL on CUDA; any other accelerator by torch's own map from device to process group; gloo on CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return gloo
    if accelerator.type == "cuda":
        return nccl
    groups = torch.distributed.Backend.default_device_backend_map
    return Backend(
        name=groups.get(accelerator.type, accelerator.type),
        device_type=accelerator.type,
        process_group=groups.get(accelerator.type, accelerator.type),
        ranks=torch.accelerator.device_count(),
        start_method="spawn",
    )


automatic = _automatic()
