"""What the benchmarks of worlds run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from harness.worlds.rank import Rank


def train(mesh: DeviceMesh) -> None:
    """The thread worlds' body: shard a small MLP as a whole, and take two steps."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def train_on(rank: Rank) -> None:
    """``train`` as a program; a world keeps its meshes from example to example."""
    train(rank.mesh())


def reduce_on(rank: Rank) -> None:
    """One all-reduce."""
    dist.all_reduce(torch.ones(4))
