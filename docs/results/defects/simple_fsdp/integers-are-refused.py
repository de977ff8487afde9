"""SimpleFSDP cannot shard a net with a parameter of integers (torchtitan 0.3.0, torch 2.13.0).

It makes each parameter need a gradient, which integers cannot have.

Run: python docs/results/defects/simple_fsdp/integers-are-refused.py
Expected: torch.Size([1, 2])
Got: only Tensors of floating point dtype can require gradients
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    net = nn.Linear(2, 2)
    net.codes = nn.Parameter(torch.arange(4), requires_grad=False)
    expected = net(torch.ones(1, 2)).shape
    try:
        got = data_parallel(net, mesh, "fully_shard")(torch.ones(1, 2)).shape
    except RuntimeError as error:
        got = error
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
