"""With CPU offload, hooks on parameters see gradients that have not arrived on the CPU yet (torch 2.11.0).

Run: python docs/evidence/torch/mended/devices/steps-before-landing.py
Expected: [[1.0, 1.0]] from both ranks, the gradient. Got: [[nan, nan]], or what was in that memory: the copy
from the device is waited for when backward ends, and the hook runs before that.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard


def main(rank: int, store: str) -> None:
    """One of two ranks, on a simulated device."""
    from harness.simulated import device, process_group  # noqa: F401

    seen: list[Any] = []
    dist.init_process_group("simulated", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.accelerator.set_device_index(rank)
    net: Any = fully_shard(torch.nn.Linear(2, 2, bias=False), offload_policy=CPUOffloadPolicy())
    net.weight.register_post_accumulate_grad_hook(lambda weight: seen.extend(weight.grad.to_local().tolist()))
    net(torch.ones(1, 2, device="simulated")).sum().backward()
    print(seen, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
