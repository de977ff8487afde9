"""Passes that are more than a forward and a backward: written once, and run on sharded and unsharded nets alike.

A *body* is one step of training without the optimizer. It yields what it has found whenever gradients are to be looked
at; the unsharded model's gradients are then averaged over ranks::

    def twice(p: Pass) -> Found:            rank 0: gradient 1, then 1 + 3        expected on both ranks: 2, then 6
        for half in (0, 1):                 rank 1: gradient 3, then 3 + 5
            loss = p.loss(p.net(p.inputs(half)), half)
            loss.backward()
            yield {"loss": loss.detach()}

Imports no ``torch.distributed``, directly or not: what ranks must find is worked out here, one rank after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.vendor import Implementation
from suites.kit.cases import Stack, TrainingCase, fill
from suites.kit.stepping import OwnSGD
from suites.oracle.layout import shard

#: What a body yields: plain data.
Found = Iterator[dict[str, Any]]
Body = Callable[["Pass"], Found]
Cut = Callable[[str, Tensor], Tensor]


class Blocks(nn.Module):
    """A net of a stack's blocks; forward runs one after the other."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(stack.build())

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        for block in self.blocks:
            x = block(x)
        return x


@dataclass
class Pass:
    """One step of one rank: the net, the rank's data, and the implementation if the net is sharded by one."""

    net: Any
    case: TrainingCase
    step: int
    rank: int
    implementation: Implementation | None = None

    def inputs(self, salt: int = 0) -> Tensor:
        """A batch of this rank in this step."""
        shape = (self.case.batch, self.case.net.dim)
        return self.case.numbers(shape, 1, self.step, self.rank, salt).to(next(self.net.parameters()).device)

    def loss(self, outputs: Tensor, salt: int = 0) -> Tensor:
        """The outputs weighted by fixed numbers of either sign."""
        return (outputs * self.case.numbers(tuple(outputs.shape), 2, self.step, self.rank, salt).to(outputs)).sum()

    def tell(self, module: Any, method: str, *args: Any, **options: Any) -> None:
        """Call a method that sharded modules have; an unsharded net has none."""
        if self.implementation is not None:
            getattr(module, method)(*args, **options)

    def reshard(self) -> None:
        """Bring back the sharded parameters of all modules that were sharded by plan."""
        for module in [self.net, *(self.net.blocks[place] for place in self.case.sharded)]:
            self.tell(module, "reshard")


def shard_by_plan(implementation: Implementation, case: TrainingCase, net: Any, **options: Any) -> None:
    """Shard the case's blocks, then the root."""
    assert implementation.fully_shard is not None
    for place in case.sharded:
        implementation.fully_shard(net.blocks[place], **options)
    implementation.fully_shard(net, **options)


def plain_sgd(case: TrainingCase, net: nn.Module) -> torch.optim.Optimizer:
    """SGD at the case's learning rate."""
    return OwnSGD(net.parameters(), case.learning_rate)


@dataclass(frozen=True)
class Route:
    """What is done: to which net, how it is sharded, and how it learns. Travels to ranks by name."""

    body: Body
    net: type[Blocks] = Blocks
    spread: Callable[..., None] = shard_by_plan
    optimizer: Callable[[Any, nn.Module], torch.optim.Optimizer] = plain_sgd

    def build(self, case: TrainingCase) -> Blocks:
        """The net with the case's numbers."""
        net = self.net(case.net).to(case.torch_dtype)
        fill(net, case.seed, case.exact)
        return net


def expected(case: TrainingCase, route: Route, cut: Callable[[int], Cut] | None = None) -> list[list[Any]]:
    """What each rank must find in each step; ``cut(rank)(name, full)`` is its part of a tensor, by default its rows."""
    net = route.build(case)
    optimizer = route.optimizer(case, net)
    cuts = [cut(rank) if cut else _rows(case, rank) for rank in range(case.world_size)]
    found: list[list[Any]] = [[] for _ in cuts]
    for step in range(case.steps):
        runs = [_alone(Pass(net, case, step, rank), route.body) for rank in range(case.world_size)]
        means = [_mean([run[place][1] for run in runs]) for place in range(len(runs[0]))]
        for name, parameter in net.named_parameters():
            parameter.grad = means[-1][name]
        optimizer.step()
        parameters = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        for rank, run in enumerate(runs):
            points = [(facts, _parts(mean, cuts[rank])) for (facts, _), mean in zip(run, means, strict=True)]
            found[rank].append({"points": points, "parameters": _parts(parameters, cuts[rank])})
    return found


def _alone(p: Pass, body: Body) -> list[tuple[dict[str, Any], dict[str, Tensor | None]]]:
    p.net.zero_grad()
    named = list(p.net.named_parameters())
    found = [(facts, {n: None if q.grad is None else q.grad.clone() for n, q in named}) for facts in body(p)]
    p.net.zero_grad()
    return found


def _mean(gradients: list[dict[str, Tensor | None]]) -> dict[str, Tensor | None]:
    """The mean over ranks; None where no rank has a gradient."""
    every = {name: [each[name] for each in gradients] for name in gradients[0]}
    present = {name: [one for one in each if one is not None] for name, each in every.items()}
    return {name: torch.stack(each).sum(0) / len(gradients) if each else None for name, each in present.items()}


def _parts(tensors: dict[str, Any], cut: Cut) -> dict[str, Any]:
    return {name: None if tensor is None else cut(name, tensor) for name, tensor in tensors.items()}


def _rows(case: TrainingCase, rank: int) -> Cut:
    return lambda name, full: shard(full, case.shards, rank % case.shards)
