"""megatron-fsdp takes a ModuleList, which has no forward, and then it cannot run (megatron-fsdp 0.6.1, torch 2.13.0).

Run: python docs/results/defects/megatron_fsdp/modules-without-forward.py
Expected: [[2.0]], or a ValueError when it is sharded
Got: RuntimeError: aten.mm.default got mixed torch.Tensor and DTensor
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
    blocks = nn.ModuleList([nn.Linear(2, 1, bias=False)])
    nn.init.ones_(blocks[0].weight)
    expected = f"{blocks[0](torch.ones(1, 2)).tolist()}, or a ValueError when it is sharded"
    mfsdp.fully_shard(blocks, mesh, PLACEMENTS)
    try:
        got = blocks[0](torch.ones(1, 2)).tolist()
    except RuntimeError as error:
        got = f"RuntimeError: {str(error).partition(', need')[0]}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
