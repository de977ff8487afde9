"""The unsharded model: what training would give without any ranks. Imports no ``torch.distributed``.

Two ranks with gradients 1 and 3 give the baseline gradient (1 + 3) / 2 = 2, of which each rank holds its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn

from suites.kit.cases import TrainingCase
from suites.oracle.layout import shard


@dataclass(frozen=True)
class FullStep:
    """One step of the unsharded model: each rank's loss, and full gradients and parameters by name.

    ``magnitudes`` is the mean over ranks of the gradients' absolute values, by name: the scale of rounding errors
    in their average, which may be far above the average itself.
    """

    losses: list[Tensor]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    magnitudes: dict[str, Tensor]


def train(case: TrainingCase, dtype: torch.dtype) -> list[FullStep]:
    """Train the case's net in ``dtype`` on all ranks' batches: the mean over ranks of each rank's gradient."""
    net = case.build().to(dtype)
    optimizer = case.optimizer(net.parameters())
    return [_step(net, optimizer, case, step, dtype) for step in range(case.steps)]


def _step(
    net: nn.Module, optimizer: torch.optim.Optimizer, case: TrainingCase, step: int, dtype: torch.dtype
) -> FullStep:
    losses: list[Tensor] = []
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in net.named_parameters()}
    size = {name: torch.zeros_like(p, requires_grad=False) for name, p in net.named_parameters()}
    for rank in range(case.world_size):
        loss = case.loss(net(case.inputs(step, rank).to(dtype)), step, rank)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        losses.append(loss.detach())
        for name, grad in zip(total, grads, strict=True):
            total[name] += grad / case.world_size
            size[name] += grad.abs() / case.world_size
    for name, parameter in net.named_parameters():
        parameter.grad = total[name]
    optimizer.step()
    parameters = {name: p.detach().clone() for name, p in net.named_parameters()}
    return FullStep(losses, total, parameters, size)


def on_rank(steps: list[FullStep], rank: int, shards: int) -> Trace:
    """What one rank must see of it: its own loss, and its rows of everything else.

    Ranks beyond ``shards`` hold the rows again, as replicas: of 2 shards on 4 ranks, rank 2 holds what rank 0 holds.
    """

    def rows(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: shard(tensor, shards, rank % shards) for name, tensor in tensors.items()}

    return [
        Step(loss=step.losses[rank], gradients=dict(rows(step.gradients)), parameters=rows(step.parameters))
        for step in steps
    ]


class Step(TypedDict):
    """One training step: the rank's loss, and its local gradients and (updated) parameters by name."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    parameters: dict[str, Tensor]


Trace = list[Step]
