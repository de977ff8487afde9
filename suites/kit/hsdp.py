"""Hybrid sharding: replicas of shards. What is drawn, and what runs on ranks.

On a mesh of 2 replicas and 2 shards, rank ``2·replica + shard`` holds a parameter of four rows so::

    rank 0: rows 0, 1    rank 1: rows 2, 3    rank 2: rows 0, 1    rank 3: rows 2, 3
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.rank import Rank
from harness.trial import most_ranks
from suites.kit.cases import TrainingCase
from suites.kit.programs import apply, data_mesh, local, steps
from suites.kit.strategies import MOST, training_cases
from suites.kit.traces import Trace
from suites.kit.tree_programs import spread

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
    """Spoil all replicas but the first, then broadcast from it; what is held ``before`` and ``after``."""
    net = apply(rank, case, case.build())
    spoil(rank, case, net)
    before = held(net)
    broadcast_over_replicas(rank, case, net)
    return {"before": before, "after": held(net)}


def train_after_broadcast(rank: Rank, case: TrainingCase) -> Trace:
    """Spoil all replicas but the first, broadcast from it, then train."""
    net = apply(rank, case, case.build(), reshard_after_forward=case.reshard_after_forward)
    spoil(rank, case, net)
    broadcast_over_replicas(rank, case, net)
    return steps(rank, case, net)


def spoil(rank: Rank, case: TrainingCase, net: nn.Module) -> None:
    """On all replicas but the first, write a constant over every shard and buffer."""
    if rank.number >= case.shards:
        for tensor in tensors(net).values():
            tensor.fill_(CONSTANT)


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
