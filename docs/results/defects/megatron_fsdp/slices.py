"""A Sequential that megatron-fsdp has sharded cannot be sliced (megatron-fsdp 0.6.1, torch 2.13.0).

Its class is a mixin's whose constructor takes other arguments than Sequential's.

Run: python docs/results/defects/megatron_fsdp/slices.py
Expected: 1
Got: TypeError: FsdpModule.__init__() missing 2 required positional arguments: 'placements' and 'mixed_precision_policy'
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
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    expected = len(net[:1])
    mfsdp.fully_shard(net, mesh, PLACEMENTS)
    try:
        got = len(net[:1])
    except TypeError as error:
        got = f"TypeError: {error}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
