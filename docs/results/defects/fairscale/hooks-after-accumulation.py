"""In fairscale's FSDP hooks after accumulation see their own rank's gradient (fairscale 0.4.13, torch 2.13.0).

Optimizers that step in backward depend on such hooks.

Run: python docs/results/defects/fairscale/hooks-after-accumulation.py
Expected: 1.5 on rank 1
Got: 2.0
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
    net, seen = wrap(nn.Linear(1, 1, bias=False), flatten_parameters=False), []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.max().item()))
    net(torch.ones(1, 1) + rank).sum().backward()
    if rank == 1:
        print(f"Expected: 1.5 on rank 1\nGot: {max(seen, default='no call')}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
