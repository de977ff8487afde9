"""A frozen parameter that smaller groups keep is registered as one that trains (torch 2.11.0).

Run: python docs/evidence/torch/mended/frozen-in-groups.py
Expected: False from all four ranks, as before forward. Got: True.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4).requires_grad_(False))
    fully_shard(net[0], reshard_after_forward=2)
    fully_shard(net)(torch.ones(1, 4))
    print(net[0].weight.requires_grad, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=4)
