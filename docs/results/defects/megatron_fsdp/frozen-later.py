"""A parameter frozen after sharding still gets gradients from megatron-fsdp (megatron-fsdp 0.6.1, torch 2.13.0).

Run: python docs/results/defects/megatron_fsdp/frozen-later.py
Expected: a gradient of the weight: False
Got: a gradient of the weight: True
"""

import tempfile
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron_fsdp import experimental as mfsdp
from torch import nn

mfsdp.module.torch = SimpleNamespace(**{**vars(torch), "cuda": MagicMock()})  # so that a CPU will do
PLACEMENTS = mfsdp.Placements([0], [mfsdp.Flat()], [mfsdp.Flat()], [mfsdp.Flat()])


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    net = nn.Linear(2, 2)
    mfsdp.fully_shard(net, mesh, PLACEMENTS)
    net.weight.requires_grad_(False)
    net(torch.ones(1, 2)).sum().backward()
    expected = "a gradient of the weight: False"
    got = f"a gradient of the weight: {net.weight.grad is not None}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
