"""FSDP1 cannot go back through two forwards between which it was evaluated (torch 2.13.0).

Run: python docs/results/defects/fsdp1/two-forwards-and-a-look.py
Expected: gone back
Got: RuntimeError
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def end(net: nn.Module) -> str:
    try:
        first = net(torch.ones(1, 3))
        with torch.no_grad():
            net(torch.ones(1, 3))
        net(torch.ones(1, 3)).sum().backward()
        first.sum().backward()
        return "gone back"
    except RuntimeError as error:
        return type(error).__name__


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    expected = end(net)
    net[0] = FSDP(net[0], device_id=torch.device("cpu"), use_orig_params=True)
    got = end(FSDP(net, device_id=torch.device("cpu"), use_orig_params=True))
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
