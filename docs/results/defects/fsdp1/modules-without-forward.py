"""FSDP1 takes a ModuleList, which has no forward, and then its modules cannot run (torch 2.13.0).

Run: python docs/results/defects/fsdp1/modules-without-forward.py
Expected: [[2.0]], or a ValueError when it is wrapped
Got: RuntimeError: size mismatch, got input (1), mat (1x2), vec (1)
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    blocks = nn.ModuleList([nn.Linear(2, 1, bias=False)])
    nn.init.ones_(blocks[0].weight)
    expected = f"{blocks[0](torch.ones(1, 2)).tolist()}, or a ValueError when it is wrapped"
    try:
        wrapped = FSDP(blocks, device_id=torch.device("cpu"), use_orig_params=True)
        got = wrapped.module[0](torch.ones(1, 2)).tolist()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
