"""Sharding a module twice with hyper-parallel is an error about classes (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/sharding/sharded-twice.py
Expected: an error that says that it has been sharded, or nothing
Got: TypeError: Cannot create a consistent method resolution
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
    net = nn.Linear(2, 2, bias=False)
    expected = "an error that says that it has been sharded, or nothing"
    fully_shard(net, **given)
    try:
        fully_shard(net, **given)
        got = "nothing"
    except Exception as error:
        got = f"{type(error).__name__}: {str(error).split(chr(10))[0]}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
