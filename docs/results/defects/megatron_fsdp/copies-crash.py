"""A deep copy of a module that megatron-fsdp has sharded ends the process (megatron-fsdp 0.6.1, torch 2.13.0).

Run: python docs/results/defects/megatron_fsdp/copies-crash.py
Expected: a copy, or an error that says why not
Got: process 0 terminated with signal SIGSEGV
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
    net = nn.Linear(2, 2)
    mfsdp.fully_shard(net, mesh, PLACEMENTS)
    copy.deepcopy(net)


if __name__ == "__main__":
    try:
        mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
        got = "a copy"
    except Exception as error:
        got = str(error).strip().splitlines()[-1]
    print(f"Expected: a copy, or an error that says why not\nGot: {got}")
