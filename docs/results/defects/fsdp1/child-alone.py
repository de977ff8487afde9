"""In FSDP1 a module inside keeps the gradients of a step that it runs without its root (torch 2.13.0).

The root's end of backward reduces; without it the next step of the root adds to what was left.

Run: python docs/results/defects/fsdp1/child-alone.py
Expected: [[1.0]]
Got: [2.0]
"""

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def gradients(net: nn.Sequential, inner: nn.Module) -> list[list[float]]:
    for module in (net, inner, net):
        net.zero_grad()
        module(torch.ones(1, 1)).sum().backward()
    return next(inner.parameters()).grad.tolist()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    [nn.init.ones_(module.weight) for module in net]
    sharded = copy.deepcopy(net)
    sharded[0] = FSDP(sharded[0], device_id=torch.device("cpu"), use_orig_params=True)
    root = FSDP(sharded, device_id=torch.device("cpu"), use_orig_params=True)
    expected, got = gradients(net, net[0]), gradients(root, sharded[0])
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
