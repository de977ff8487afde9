"""SimpleFSDP makes frozen parameters trainable (torchtitan 0.3.0, torch 2.13.0).

data_parallel wraps each parameter anew, as nn.Parameter(…), which needs a gradient unless told otherwise.

Run: python docs/results/defects/simple_fsdp/frozen-parameters-train.py
Expected: [False, True]
Got: [True, True]
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel


def step(net: nn.Module) -> list[bool]:
    net(torch.ones(1, 2)).sum().backward()
    return [parameter.grad is not None for parameter in net.parameters()]


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    net = nn.Linear(2, 2)
    net.weight.requires_grad_(False)
    expected = step(net)
    got = step(data_parallel(net, mesh, "fully_shard"))
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
