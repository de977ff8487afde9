"""FSDP1 calls no hook that is to run when a parameter's gradient has been accumulated (torch 2.13.0).

Optimizers that step in backward depend on such hooks.

Run: python docs/results/defects/fsdp1/hooks-after-accumulation.py
Expected: 2
Got: 0
"""

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def calls(net: nn.Module) -> int:
    called = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(called.append)
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
    return len(called)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(2, 2, bias=False)
    expected = calls(copy.deepcopy(net))
    got = calls(FSDP(net, device_id=torch.device("cpu"), use_orig_params=True))
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
