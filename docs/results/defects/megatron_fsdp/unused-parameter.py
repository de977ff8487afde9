"""One unused parameter leaves its group unreduced in megatron-fsdp (megatron-fsdp 0.6.1, torch 2.13.0).

The group is reduced when the last of its parameters has a gradient, which then never is; nothing is said.

Run: python docs/results/defects/megatron_fsdp/unused-parameter.py
Expected: a gradient of 1.5, the average over ranks
Got: a gradient of 1.0
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
    net = nn.Linear(1, 1, bias=False)
    net.unused = nn.Parameter(torch.ones(1, 1))
    mfsdp.fully_shard(net, mesh, PLACEMENTS)
    net(torch.full((1, 1), 1.0 + rank)).sum().backward()
    expected = "a gradient of 1.5, the average over ranks"
    got = f"a gradient of {net.weight.grad.item()}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
