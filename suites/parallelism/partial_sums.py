"""Gradients that tensor parallelism leaves as parts of a sum, where that sum must not be in a low dtype.

A weight of one number, whole on both tp ranks, in bfloat16 and reduced in float32; ``eps`` is bfloat16's, 2**-7::

    tp 0: 1    tp 1: eps / 4    the gradient in float32: 1 + eps / 4    in bfloat16: 1
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Partial, Replicate, distribute_tensor

from harness.vendor.bounds import averages
from harness.worlds.rank import Rank
from suites.kit.parallel import ParallelCase
from suites.kit.precision_programs import LOW
from suites.kit.programs import data_mesh, whole_mesh


class Scaling(nn.Module):
    """A weight of one number, of which each tp rank has all, and a part of its gradient."""

    def __init__(self, rank: Rank, case: ParallelCase) -> None:
        super().__init__()
        mesh = whole_mesh(rank, case)["tp"]
        self.weight = nn.Parameter(distribute_tensor(torch.zeros(1, device=rank.device), mesh, [Replicate()]))

    def forward(self, x: Tensor, is_part: bool = True) -> Tensor:
        """``(1,)`` to ``(1,)``; the gradient of the weight is ``x``, or that is its part."""
        weight: Any = self.weight
        own: Tensor = weight.to_local(grad_placements=[Partial() if is_part else Replicate()])
        return own * x


def part(case: ParallelCase, rank: int, dtype: torch.dtype) -> float:
    """A rank's part of its data rank's gradient, which the dtype holds exactly."""
    small = torch.finfo(dtype).eps / 4
    return (1 + case.data_rank(rank)) * (small if case.place(rank, "tp") else 1.0)


def sums(rank: Rank, case: ParallelCase, passes: int = 1) -> dict[str, Tensor]:
    """The whole gradient of so many like passes for each low dtype."""
    return {name: gradient(rank, case, getattr(torch, name), passes) for name in LOW}


def gradient(rank: Rank, case: ParallelCase, dtype: torch.dtype, passes: int) -> Tensor:
    """The gradient where a dtype is computed in, and float32 is reduced in; only the last pass reduces."""
    subject = rank.implementation
    policy = subject.mixed_precision_policy(param_dtype=dtype, reduce_dtype=torch.float32)
    net: Any = subject.fully_shard(Scaling(rank, case), mesh=data_mesh(rank, case), mp_policy=policy)
    for number in range(1, passes + 1):
        if passes > 1:
            net.set_requires_gradient_sync(number == passes)
        net(torch.tensor([part(case, rank.number, dtype)], device=rank.device)).sum().backward()
    whole: Tensor = net.weight.grad.full_tensor()
    return whole


def right_sums(case: ParallelCase, passes: int = 1) -> dict[str, Tensor]:
    """What these must be: sums over all ranks, divided by the number of batches if gradients are averages."""
    parts = {name: [part(case, rank, getattr(torch, name)) for rank in range(case.world_size)] for name in LOW}
    divisor = case.data_ranks if averages() else 1
    return {name: torch.tensor([passes * sum(each) / divisor]) for name, each in parts.items()}


#: Of each pass, whether it leaves parts of the gradient.
TURNS = ((True, False) * 2, (False, True) * 2)


def by_turns(rank: Rank, case: ParallelCase, turns: tuple[bool, ...]) -> list[Tensor]:
    """The whole gradient after each of these passes."""
    net: Any = rank.implementation.fully_shard(Scaling(rank, case), mesh=data_mesh(rank, case))
    found = []
    for is_part in turns:
        net(torch.tensor([given(case, rank.number, is_part)], device=rank.device), is_part).sum().backward()
        found.append(net.weight.grad.full_tensor().clone())
    return found


def given(case: ParallelCase, rank: int, is_part: bool) -> float:
    """What a rank's gradient is in a pass, which other tp ranks have as well, or a part."""
    return (1.0 + case.data_rank(rank)) * (1.0 + case.place(rank, "tp") if is_part else 1.0)


def right_by_turns(case: ParallelCase, turns: tuple[bool, ...]) -> list[Tensor]:
    """What it must be: of parts the sum, and of what tp ranks have alike that of one."""
    found, total = [], 0.0
    for is_part in turns:
        ranks = [rank for rank in range(case.world_size) if is_part or not case.place(rank, "tp")]
        total += sum(given(case, rank, is_part) for rank in ranks) / (case.data_ranks if averages() else 1)
        found.append(torch.tensor([total]))
    return found
