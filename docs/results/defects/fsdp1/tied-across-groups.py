"""FSDP1 takes a weight that two of its instances share for two, whose gradients are wrong (torch 2.13.0).

Run: python docs/results/defects/fsdp1/tied-across-groups.py
Expected: [4.0, 4.0, 4.0, 4.0]
Got: [3.0, 3.0], of which a rank has half
"""

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    nn.init.ones_(net[0].weight)
    sharded = copy.deepcopy(net)
    for place in (0, 1):
        sharded[place] = FSDP(sharded[place], device_id=torch.device("cpu"), use_orig_params=True)
    sharded = FSDP(sharded, device_id=torch.device("cpu"), use_orig_params=True)
    for each in (net, sharded):
        each(torch.ones(1, 2)).sum().backward()
    expected, got = (next(p.grad for p in each.parameters() if p.grad is not None) for each in (net, sharded))
    expected, got = expected.flatten().tolist(), f"{got.flatten().tolist()}, of which a rank has half"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
