"""A module that runs before its root ends a process of one rank (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/training/runs-before-its-root.py
Expected: a step
Got: process 0 terminated with signal SIGSEGV
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
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=1)
    given = {"mesh": init_device_mesh("cpu", (1,)), "reshard_after_forward": False, "device": torch.device("cpu")}
    net = nn.Sequential(nn.Linear(2, 2))
    fully_shard(net[0], **given)
    fully_shard(net, **given)
    with torch.no_grad():
        net[0](torch.ones(1, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print("Got: a step", flush=True)


if __name__ == "__main__":
    print("Expected: a step", flush=True)
    try:
        mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=1)
    except mp.ProcessExitedException as error:
        print(f"Got: {error}")
