"""A group that no gradient reaches stays gathered after backward (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/training/stays-gathered.py
Expected: [(2, 4), (2, 4)]
Got: [(4, 4), (2, 4)]
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

os.environ["HYPER_PARALLEL_PLATFORM"] = "torch"
from hyper_parallel import init_device_mesh
from hyper_parallel.core.fully_shard.api import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    given = {"mesh": init_device_mesh("cpu", (2,)), "reshard_after_forward": False, "device": torch.device("cpu")}
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net[0].weight.requires_grad_(False)
    fully_shard(net[0], **given)
    fully_shard(net, **given)
    net(torch.ones(1, 4)).sum().backward()
    got = [tuple(getattr(p, "to_local", lambda p=p: p)().shape) for p in net.parameters()]
    if rank == 0:
        print(f"Expected: {[(2, 4), (2, 4)]}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
