"""hyper-parallel reduces nothing where the root returns an object (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/training/outputs-in-a-dataclass.py
Expected: rank 0's row of the average, [[1.5, 1.5]]
Got: [[1.0, 1.0], [1.0, 1.0]]
"""

import os
import tempfile
from types import SimpleNamespace

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
    net.register_forward_hook(lambda module, inputs, outputs: SimpleNamespace(logits=outputs))
    fully_shard(net, **given)
    net(torch.full((1, 2), 1.0 + rank)).logits.sum().backward()
    expected = "rank 0's row of the average, [[1.5, 1.5]]"
    got = next(net.parameters()).grad.tolist()
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
