"""What runs on ranks: plain functions of a rank and a case that return traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from harness.rank import Rank
from suites.kit.cases import CaseOnMesh, NetCase, TrainingCase
from suites.kit.parts import local
from suites.kit.traces import Step, Trace


def apply(rank: Rank, case: NetCase, net: nn.Sequential, **options: Any) -> nn.Sequential:
    """Shard the case's blocks, then the root, over the case's mesh."""
    fully_shard = rank.implementation.fully_shard
    assert fully_shard is not None
    options.setdefault("mesh", data_mesh(rank, case))
    for place in case.sharded:
        fully_shard(net[place], **options)
    fully_shard(net, **options)
    return net


def data_mesh(rank: Rank, case: CaseOnMesh) -> DeviceMesh:
    """The case's mesh: all ranks in one axis, or replicas of shards."""
    return rank.mesh(case.mesh, ("replicate", "shard")) if case.mesh else rank.mesh()


def train(rank: Rank, case: TrainingCase) -> Trace:
    """Shard, then step with torch's own SGD; keep what each step produced."""
    net = apply(rank, case, case.build(), reshard_after_forward=case.reshard_after_forward)
    return steps(rank, case, net, optimizer=torch.optim.SGD(net.parameters(), lr=case.learning_rate))


def steps(
    rank: Rank,
    case: TrainingCase,
    net: nn.Module,
    forward: Callable[..., Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Trace:
    """Train a net that is sharded already, with the case's optimizer; ``forward`` if it is not run by calling it."""
    optimizer = optimizer or case.optimizer(net.parameters())
    trace: Trace = []
    for step in range(case.steps):
        loss = case.loss((forward or net)(case.inputs(step, rank.number).to(rank.device)), step, rank.number)
        loss.backward()
        optimizer.step()
        trace.append(Step(loss=loss.detach(), gradients=gradients(net), parameters=parameters(net)))
        optimizer.zero_grad(set_to_none=case.set_to_none)
    return trace


def parameters(net: nn.Module) -> dict[str, Tensor]:
    """Every parameter's local tensor, by name."""
    return {name: local(parameter) for name, parameter in net.named_parameters()}


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    """Every parameter's local gradient, by name; None where there is none."""
    return {name: None if p.grad is None else local(p.grad) for name, p in net.named_parameters()}
