"""Hybrid sharding: replicas of shards. What is drawn, and what runs on ranks.

On a mesh of 2 replicas and 2 shards, rank ``2·replica + shard`` holds a parameter of four rows so::

    rank 0: rows 0, 1    rank 1: rows 2, 3    rank 2: rows 0, 1    rank 3: rows 2, 3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.trial import most_ranks
from harness.worlds.rank import Rank
from suites.kit.cases import NetCase, TrainingCase
from suites.kit.programs import apply, data_mesh, spread, steps
from suites.kit.strategies import MOST, training_cases
from suites.oracle.layout import local, shard
from suites.oracle.situation import Trace

#: Resharding to smaller groups is a feature of its own, which an implementation may not claim.
RESHARDS = st.sampled_from([None, True, False])
#: What no net holds: its weights are small or drawn from the normal distribution.
CONSTANT = 1337.0


@st.composite
def hsdp_meshes(draw: st.DrawFn, fewest_replicas: int = 1, power_of_two: bool = False) -> tuple[int, int]:
    """Shapes (replicas, shards) of two ranks or more; half of them, where there are ranks enough, of two by two."""
    top = max(2, min(MOST, most_ranks()))
    shapes = [(r, s) for r in range(fewest_replicas, top + 1) for s in range(1, top + 1) if 2 <= r * s <= top]
    if power_of_two:
        shapes = [(r, s) for r, s in shapes if r * s in (2, 4)]
    square = [(2, 2)] * (len(shapes) - 1) if top >= 4 else []
    return draw(st.sampled_from([*square, *shapes]))


@st.composite
def hsdp_cases(draw: st.DrawFn, /, exact: bool = False, fewest_replicas: int = 1, **fixed: Any) -> TrainingCase:
    """Some steps of training on replicas of shards."""
    mesh = draw(hsdp_meshes(fewest_replicas, power_of_two=exact))
    fixed = {"mesh": mesh, "world_size": mesh[0] * mesh[1], "reshard_after_forward": draw(RESHARDS), **fixed}
    return draw(training_cases(exact=exact, **fixed))


def layout(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """How every parameter lies on the mesh that was given, and what this rank holds of it."""
    net = apply(rank, case, case.build())
    mesh = data_mesh(rank, case)
    return {name: {**spread(p, mesh), "local": local(p)} for name, p in net.named_parameters()}


def broadcast(rank: Rank, case: TrainingCase) -> dict[str, dict[str, Tensor]]:
    """Fill the first replica, spoil all others, then broadcast from it; what is held ``before`` and ``after``."""
    net = spoilt(rank, case)
    before = held(net)
    broadcast_over_replicas(rank, case, net)
    return {"before": before, "after": held(net)}


def train_after_broadcast(rank: Rank, case: TrainingCase) -> Trace:
    """Fill the first replica, spoil all others, broadcast from it, then train."""
    net = spoilt(rank, case)
    broadcast_over_replicas(rank, case, net)
    return steps(rank, case, net)


def spoilt(rank: Rank, case: TrainingCase) -> nn.Sequential:
    """A net, sharded with other weights, that has the case's on the first replica, and on others a constant."""
    full = replace(case, seed=case.seed + 1).build()
    net = apply(rank, case, full, reshard_after_forward=case.reshard_after_forward)
    if rank.number < case.shards:
        write(net, case, lambda name, full: shard(full, case.shards, rank.number))
    else:
        for tensor in tensors(net).values():
            tensor.fill_(CONSTANT)
    return net


def write(net: nn.Module, case: NetCase, part: Callable[[str, Tensor], Tensor]) -> None:
    """Write the case's weights into this rank's part of every parameter, and its buffers."""
    full = case.build()
    own = tensors(net)
    with torch.no_grad():
        for name, parameter in full.named_parameters():
            own[name].copy_(part(name, parameter))
        for name, buffer in full.named_buffers():
            own[name].copy_(buffer)


def broadcast_over_replicas(rank: Rank, case: TrainingCase, net: nn.Module) -> None:
    """Send every shard and buffer from the first replica to the others."""
    group = data_mesh(rank, case).get_group("replicate")
    source = dist.get_process_group_ranks(group)[0]
    for tensor in tensors(net).values():
        dist.broadcast(tensor, src=source, group=group)


def tensors(net: nn.Module) -> dict[str, Tensor]:
    """This rank's own part of every parameter, and every buffer: the very memory."""
    with torch.no_grad():
        shards = {name: p.to_local() if hasattr(p, "to_local") else p for name, p in net.named_parameters()}
        return {**shards, **dict(net.named_buffers())}


def held(net: nn.Module) -> dict[str, Tensor]:
    """A copy of what this rank holds."""
    return {name: tensor.detach().clone() for name, tensor in tensors(net).items()}
