"""fairscale's FSDP takes a ModuleList, which has no forward, and its modules are wrong then (0.4.13, torch 2.13.0).

Run: python docs/results/defects/fairscale/modules-without-forward.py
Expected: [[2.0, 2.0]], or a ValueError when it is wrapped
Got: [2.0]
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
    layers = nn.ModuleList([nn.Linear(2, 2, bias=False)])
    nn.init.ones_(layers[0].weight)
    try:
        got = wrap(layers, flatten_parameters=False)[0](torch.ones(1, 2)).tolist()
    except (RuntimeError, ValueError) as error:
        got = f"{type(error).__name__}: {error}"
    if rank == 0:
        print(f"Expected: [[2.0, 2.0]], or a ValueError when it is wrapped\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
