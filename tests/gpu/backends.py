"""NCCL in ways that need a GPU to be tried."""

from __future__ import annotations

from dataclasses import replace

from harness.vendor.accelerators import nccl

#: For several pytest processes at once that share one device.
shared = replace(nccl, own_devices=True, visible_devices="")
#: More ranks than devices, where NCCL takes them for ranks of several hosts.
several = replace(shared, name="nccl, ranks share a device", ranks=max(4, nccl.ranks), imports=("tests.gpu.host_ids",))
#: Likewise with gloo: what ranks send goes through the host.
through_host = replace(
    shared, name="gloo on cuda", process_group="gloo", ranks=4, lacks={"premul_sum": "gloo has no PREMUL_SUM"}
)
