"""A net of fairscale's FSDP that was trained is never freed (fairscale 0.4.13, torch 2.13.0).

Run: python docs/results/defects/fairscale/never-freed.py
Expected: None
Got: the parameter of a net that was deleted and collected
"""

import gc
import os
import tempfile
import weakref
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
    net = wrap(nn.Linear(1, 1, bias=False))
    net(torch.ones(1, 1)).sum().backward()
    kept = weakref.ref(net.params[0])
    net = gc.collect()
    got = kept() if kept() is None else "the parameter of a net that was deleted and collected"
    if rank == 0:
        print(f"Expected: None\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
