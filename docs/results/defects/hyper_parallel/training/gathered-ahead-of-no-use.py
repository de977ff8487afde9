"""What is gathered ahead and does not run keeps the weights of before the step (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/training/gathered-ahead-of-no-use.py
Expected: [[1.0, 1.0]]
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
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    given = {"mesh": init_device_mesh("cpu", (2,)), "reshard_after_forward": False, "device": torch.device("cpu")}
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for layer in net:
        nn.init.ones_(layer.weight)
        fully_shard(layer, **given)
    net[0].set_modules_to_backward_prefetch([net[1]])
    net(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        [parameter.to_local().fill_(0.5) for parameter in net.parameters()]
        got, expected = net(torch.ones(1, 2)).tolist(), [[1.0, 1.0]]
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
