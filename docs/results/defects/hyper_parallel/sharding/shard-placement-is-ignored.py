"""hyper-parallel takes shard_placement_fn, and ignores it (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/sharding/shard-placement-is-ignored.py
Expected: columns, of shape (2, 2)
Got: (Shard(dim=0),) of shape (1, 4)
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
from hyper_parallel.core.placement_types import Shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    given = {"mesh": init_device_mesh("cpu", (2,)), "reshard_after_forward": False, "device": torch.device("cpu")}
    net = nn.Linear(4, 2, bias=False)
    expected = "columns, of shape (2, 2)"
    fully_shard(net, shard_placement_fn=lambda parameter: Shard(1), **given)
    got = f"{net.weight.placements} of shape {tuple(net.weight.to_local().shape)}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
