"""hyper-parallel takes ignored_params, and shards them all the same (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/sharding/ignored-params-are-sharded.py
Expected: the same parameter, of shape (2, 4)
Got: another parameter, of shape (1, 4)
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
    net = nn.Linear(4, 2, bias=False)
    weight = net.weight
    fully_shard(net, ignored_params={weight}, **given)
    expected = "the same parameter, of shape (2, 4)"
    got = (
        f"{'the same' if net.weight is weight else 'another'} parameter, of shape {tuple(net.weight.to_local().shape)}"
    )
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
