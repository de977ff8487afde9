"""In fairscale's FSDP one forward cannot go backward twice, with an output each time (fairscale 0.4.13, torch 2.13.0).

Run: python docs/results/defects/fairscale/two-backwards.py
Expected: no error
Got: AssertionError
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

idle = type("Idle", (nullcontext,), dict.fromkeys(("__call__", "__getattr__"), lambda self, *_: self))()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    fsdp.torch, torch.Tensor.record_stream = SimpleNamespace(**{**vars(torch), "cuda": idle}), lambda *_: None
    fsdp._get_default_cuda_device, wrap = lambda module: torch.device("cpu"), fsdp.FullyShardedDataParallel
    (first, second), got = wrap(nn.Linear(1, 1, bias=False))(torch.ones(2, 1)), "no error"
    try:
        first.backward(retain_graph=True)
        second.backward()
    except (AssertionError, RuntimeError) as error:
        got = type(error).__name__
    if rank == 0:
        print(f"Expected: no error\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
