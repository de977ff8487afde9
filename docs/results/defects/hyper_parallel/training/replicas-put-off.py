"""What set_requires_all_reduce(False) put off is never averaged over replicas (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/training/replicas-put-off.py
Expected: [[3.0, 3.0]]
Got: [[2.0, 2.0]]
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
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net = nn.Linear(2, 2, bias=False)
    fully_shard(net, mesh=mesh, reshard_after_forward=False, device=torch.device("cpu"))
    expected = [[3.0, 3.0]]
    for last in (False, True):
        net.set_requires_all_reduce(last)
        net(torch.full((1, 2), float(rank))).sum().backward()
    got = net.weight.grad.to_local().tolist()
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=4)
