"""An optimizer that steps in backward races with a gather ahead of what it steps (seen in torch 2.13.0).

Run: python docs/evidence/torch/interactions/gathers-what-stepped.py
Expected: no race on either rank. Got: "reads memory that aten::sub.out … writes": the gather of the last layer, which
the first one lists for backward, waits for nothing that the last one's step does on the stream of reductions.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


@torch.no_grad()
def step(parameter: Any) -> None:
    """The optimizer, on each parameter whose gradient is ready."""
    parameter.sub_(parameter.grad)


def main(rank: int, store: str) -> None:
    """One of two ranks, on a simulated device."""
    from harness.simulated import device, process_group, races  # noqa: F401

    dist.init_process_group("simulated", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.accelerator.set_device_index(rank)
    net: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to("simulated")
    for module in (*net, net):
        fully_shard(module)
    net[0].set_modules_to_backward_prefetch([net[1]])
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    net(torch.ones(1, 2, device="simulated")).sum().backward()
    print(f"rank {rank}:", *(races.races() or ["no race"]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
