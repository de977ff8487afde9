"""FSDP1 goes on with old weights if a forward without gradients comes before optimizer.step() (torch 2.13.0).

The root keeps the weights that such a forward has gathered, and the next forward without gradients takes them for new.

Run: python docs/results/defects/fsdp1/old-weights-after-evaluation.py
Expected: 0.0
Got: 2.0
"""

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def output_after_a_step(net: nn.Module) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        net(torch.ones(1, 2))
        optimizer.step()
        return net(torch.ones(1, 2)).item()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(2, 1, bias=False)
    nn.init.ones_(net.weight)
    sharded = FSDP(copy.deepcopy(net), device_id=torch.device("cpu"))
    expected, got = output_after_a_step(net), output_after_a_step(sharded)
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
