"""In fairscale's FSDP what torch.utils.checkpoint recomputes cannot go backward (fairscale 0.4.13, torch 2.13.0).

Run: python docs/results/defects/fairscale/checkpoints.py
Expected: no error
Got: ValueError: expected to be in states
"""

import os
import tempfile
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

os.environ["ENABLE_NCCL_BASE_COLLECTIVES"] = "0"  # gloo scatters no matrices
from fairscale.nn.data_parallel import fully_sharded_data_parallel as fsdp
from torch.utils.checkpoint import checkpoint

idle = type("Idle", (nullcontext,), dict.fromkeys(("__call__", "__getattr__"), lambda self, *_: self))()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    fsdp.torch, torch.Tensor.record_stream = SimpleNamespace(**{**vars(torch), "cuda": idle}), lambda *_: None
    fsdp._get_default_cuda_device, wrap = lambda module: torch.device("cpu"), fsdp.FullyShardedDataParallel
    net, got = wrap(nn.Sequential(wrap(nn.Linear(1, 1)), nn.Linear(1, 1))), "no error"
    try:
        checkpoint(net, torch.ones(1, 1), use_reentrant=False).sum().backward()
    except ValueError as error:
        got = f"{type(error).__name__}: {str(error).partition(' [')[0]}"
    if rank == 0:
        print(f"Expected: no error\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
