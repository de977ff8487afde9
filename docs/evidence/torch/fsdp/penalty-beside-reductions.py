"""What autograd adds to a sharded gradient races with the reduction that writes it (seen in torch 2.13.0).

Run: python docs/evidence/torch/fsdp/penalty-beside-reductions.py
Expected: no race on either rank. Got: "aten::add.out … reads memory that reduce_scatter … writes".
The loss takes a sharded parameter itself, so autograd adds to that gradient, on the stream that computes, which waits
for the stream of reductions at the end of backward alone.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One of two ranks, on a simulated device."""
    from harness.simulated import device, process_group, races  # noqa: F401

    dist.init_process_group("simulated", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.accelerator.set_device_index(rank)
    net: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to("simulated")
    for module in (*net, net):
        fully_shard(module)
    penalty = net[1].weight.full_tensor().square().sum()
    (net(torch.ones(1, 2, device="simulated")).sum() + penalty).backward()
    print(f"rank {rank}:", *(races.races() or ["no race"]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
