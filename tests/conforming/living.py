"""A program that makes deviations occur: shard, gather, run, train, ask for state and what is refused, reduce."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from harness.worlds.rank import Rank
from tests.conforming.noticing import so_far


def lived(rank: Rank) -> dict[str, int]:
    """How often each deviation showed meanwhile, in this rank's process."""
    before = so_far()
    subject, net = rank.implementation, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert subject.fully_shard is not None
    make = subject.mixed_precision_policy
    policy = {"mp_policy": make(param_dtype=torch.bfloat16)} if make else {}
    for module in (net[0], net):
        subject.fully_shard(module, mesh=rank.mesh(), **policy)
    _train(rank, net)
    net.state_dict()
    with suppress(TypeError, ValueError, AttributeError):
        net.set_reshard_after_forward("perhaps")  # type: ignore[operator]
    dist.all_reduce(torch.ones(3))
    return {deviation: count - before.get(deviation, 0) for deviation, count in so_far().items()}


def _train(rank: Rank, net: Any) -> None:
    if hasattr(net, "unshard"):
        net.unshard(async_op=True).wait()
        net.reshard()
    inputs = torch.full((2, 4), float(rank.number))
    with torch.no_grad():
        net(inputs)
    net(inputs).sum().backward()
