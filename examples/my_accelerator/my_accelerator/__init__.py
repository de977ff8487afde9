"""What importing an accelerator's plugin does: it makes a process group, here ``myccl``, known to torch.

A real plugin (``torch_npu``, say) makes a device known as well. This one borrows the CPU and gloo, so that the example
runs anywhere: put your own collectives in the place of ``_new_group``.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


def _new_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


# devices is a list: torch 2.13 would read the string "npu" as the devices n, p and u (`registration` of the doctor).
dist.Backend.register_backend("myccl", _new_group, devices=["cpu"])
