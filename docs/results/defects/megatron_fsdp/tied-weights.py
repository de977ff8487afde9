"""A weight that two modules share trains wrongly with megatron-fsdp (megatron-fsdp 0.6.1, torch 2.13.0).

Its gradient is not averaged over ranks.

Run: python docs/results/defects/megatron_fsdp/tied-weights.py
Expected: [6.0, 6.0]
Got: [4.0, 4.0]
"""

import copy
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
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = nn.init.ones_(net[0].weight)
    sharded = copy.deepcopy(net)
    mfsdp.fully_shard(sharded, mesh, PLACEMENTS)
    net(torch.full((1, 2), 1.5)).sum().backward()  # what both ranks have on average
    sharded(torch.full((1, 2), 1.0 + rank)).sum().backward()
    expected, got = (next(each.parameters()).grad[0].tolist() for each in (net, sharded))
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
