"""NCCL in ways that need a GPU to be tried."""

from __future__ import annotations

from dataclasses import replace

from harness.vendor.accelerators import nccl

#: More ranks than devices, where NCCL takes them for ranks of several hosts.
several = replace(nccl, ranks=max(4, nccl.ranks), imports=("tests.gpu.host_ids",), visible_devices="")
#: Ranks that are forked, from a server that must not have touched CUDA.
forked = replace(nccl, start_method="forkserver", environment={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
