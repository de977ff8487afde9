"""What SimpleFSDP refuses half-way has been sharded by then (torchtitan 0.3.0, torch 2.13.0).

Here the weights of a net with a parameter of integers, which it cannot shard.

Run: python docs/results/defects/simple_fsdp/refusal-leaves-it-changed.py
Expected: ['Tensor', 'Tensor', 'Tensor']
Got: ['DTensor', 'DTensor', 'Tensor']
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
    expected = [type(parameter.data).__name__ for parameter in net.parameters()]
    try:
        data_parallel(net, mesh, "fully_shard")
    except RuntimeError:
        got = [type(parameter.data).__name__ for parameter in net.parameters()]
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
