"""A step of training in virtual time, as programs: how long its parts take, and how much memory it needs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from harness.worlds.rank import Rank

DIM, BLOCKS, STEPS = 256, 6, 3
PARTS = ("forward", "backward", "optimizer")


def parts_of_a_step(rank: Rank, mesh: tuple[int, ...]) -> dict[str, float]:
    """Microseconds of forward, backward and optimizer of the last step, and the most bytes in it."""
    net: Any = nn.Sequential(*(nn.Linear(DIM, DIM, bias=False) for _ in range(BLOCKS))).to(rank.device)
    for module in (*net, net):
        rank.implementation.fully_shard(module, mesh=rank.mesh(mesh, ("replicas", "shards")[-len(mesh) :]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(DIM, DIM, device=rank.device)
    found: dict[str, float] = {}
    for _ in range(STEPS):
        found = _step(net, optimizer, x)
    return found


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> dict[str, float]:
    optimizer.zero_grad()
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    ends = [torch.Event(device=x.device, enable_timing=True) for _ in range(len(PARTS) + 1)]
    ends[0].record()
    loss = net(x).sum()
    ends[1].record()
    loss.backward()
    ends[2].record()
    optimizer.step()
    ends[3].record()
    torch.accelerator.synchronize()
    took = (start.elapsed_time(end) * 1000 for start, end in pairwise(ends))
    return {**dict(zip(PARTS, took, strict=True)), "bytes": float(torch.accelerator.max_memory_allocated())}
