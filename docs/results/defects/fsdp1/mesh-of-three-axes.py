"""FSDP1 takes the first axis of a mesh of three for its ranks, and averages over no other (torch 2.13.0).

Run: python docs/results/defects/fsdp1/mesh-of-three-axes.py
Expected: ValueError, or a gradient of 1.5, which is the average
Got: a gradient of 1.0
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(1, 1, bias=False)
    mesh = dist.init_device_mesh("cpu", (1, 2, 1), mesh_dim_names=("pipeline", "data", "tensor"))
    expected = "ValueError, or a gradient of 1.5, which is the average"
    try:
        sharded = FSDP(net, device_mesh=mesh, device_id=torch.device("cpu"))
        sharded(torch.ones(1, 1) * (rank + 1)).sum().backward()
        got = f"a gradient of {next(sharded.parameters()).grad.item()}"
    except ValueError as error:
        got = f"ValueError: {error}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
