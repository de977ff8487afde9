"""hyper-parallel has gradients clipped by each rank's own norm (hyper-parallel fdd0a808, torch 2.13.0).

SkipDTensorDispatch, which its users enter around training, makes torch's function see a rank's part alone.

Run: python docs/results/defects/hyper_parallel/training/clipping-by-local-norms.py
Expected: 2.0
Got: 1.414
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

os.environ["HYPER_PARALLEL_PLATFORM"] = "torch"
from hyper_parallel import SkipDTensorDispatch, init_device_mesh
from hyper_parallel.core.fully_shard.api import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    given = {"mesh": init_device_mesh("cpu", (2,)), "reshard_after_forward": False, "device": torch.device("cpu")}
    net = nn.Linear(2, 2, bias=False)
    norm = nn.utils.clip_grad_norm_
    net(torch.ones(1, 2)).sum().backward()
    expected = round(norm(net.parameters(), 1.0).item(), 3)
    net.zero_grad()
    fully_shard(net, **given)
    with SkipDTensorDispatch():
        net(torch.ones(1, 2)).sum().backward()
        got = round(norm(net.parameters(), 1.0).item(), 3)
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
