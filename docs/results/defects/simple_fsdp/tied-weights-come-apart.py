"""Weights that two modules share are two after SimpleFSDP, which train apart (torchtitan 0.3.0, torch 2.13.0).

Run: python docs/results/defects/simple_fsdp/tied-weights-come-apart.py
Expected: [1, True]
Got: [2, False]
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel


def train(net: nn.Module) -> list[bool]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    first, second = (module._parameters["weight"].detach() for module in net)
    return [len(list(net.parameters())), torch.equal(first, second)]


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    expected = train(net)
    got = train(data_parallel(net, mesh, "fully_shard"))
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
