"""Training where not all parameters are alike: frozen, tied or ignored ones; and its explicit results without ranks.

On two ranks with gradients 1 and 3 a trainable parameter's gradient is 2 on both; a frozen one has none; an ignored one
has 1 on rank 0 and 3 on rank 1, full on both, so that from the second step ranks compute with different values of it.

[Note: exact steps]
In float64 two linear layers, or one MLP, of dim at most 5 and multiplier at most 3 are exact for three steps: weights
are multiples of 2**-5 after one step and of 2**-10 after two, activations multiples of 2**-20 and, with weights below
2**8, losses below 2**30. If each module is called twice, so that a net is as deep as two MLPs, two steps are exact, as
the first note of ``tolerance.py`` says; and so they are with tied weights, whose gradients are sums of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from suites.kit.cases import Stack, TrainingCase, fill
from suites.kit.trees import share
from suites.oracle.layout import shard
from suites.oracle.situation import Step, Trace


@dataclass(frozen=True)
class ParameterCase(TrainingCase):
    """Training with parameters that are frozen, tied or ignored.

    ``frozen`` are the names that have no gradient, step by step; before sharding those of the first step, unless
    ``late``. In ``silent`` steps there is a forward without gradients first. Each module runs as ``calls`` says: once
    for every entry, recorded or not. ``tied`` are pairs of names, the first holding what the second holds. ``grouped``
    modules are sharded as one list.
    """

    frozen: tuple[tuple[str, ...], ...] = ()
    late: bool = False
    silent: tuple[int, ...] = ()
    recomputed: bool = False
    calls: tuple[bool, ...] = (True,)
    tied: tuple[tuple[str, str], ...] = ()
    grouped: bool = False
    ignored: tuple[str, ...] = ()

    def build(self) -> nn.Sequential:
        """The net with its ties, and weights drawn from the seed; nothing is frozen yet."""
        net = Calling(self.net, self.calls, self.recomputed).to(self.torch_dtype)
        for place, source in self.tied:
            share(net, place, source)
        fill(net, self.seed, self.exact)
        return net

    def freeze(self, named: dict[str, nn.Parameter], step: int) -> None:
        """Freeze what is to be frozen in a step, and nothing else."""
        frozen = self.frozen[step] if self.frozen else ()
        for name, parameter in named.items():
            parameter.requires_grad_(name not in frozen)


class Calling(nn.Sequential):
    """Modules one after the other, each called as often as ``calls`` has entries, and recorded where they are true."""

    def __init__(self, net: Stack, calls: tuple[bool, ...], recomputed: bool) -> None:
        super().__init__(*net.build())
        self.calls, self.recomputed = calls, recomputed

    def forward(self, x: Tensor) -> Tensor:
        """An unrecorded call adds to what it is given, so that gradients go on past it."""
        for module in self:
            for recorded in self.calls:
                if recorded:
                    x = checkpoint(module, x, use_reentrant=False) if self.recomputed else module(x)
                else:
                    with torch.no_grad():
                        more = module(x)
                    x = x + more
        return x


def train(case: ParameterCase) -> list[Trace]:
    """What every rank must see: its losses, and its rows of gradients and parameters; ignored ones in full."""
    nets = [case.build() for _ in range(case.world_size)]
    traces: list[Trace] = [[] for _ in nets]
    for step in range(case.steps):
        losses, gradients = _backward(case, nets, step)
        means = _means(case, gradients)
        for rank, net in enumerate(nets):
            own = {name: gradients[rank][name] if name in case.ignored else means[name] for name in means}
            _update(net, own, case.learning_rate)
            traces[rank].append(Step(
                loss=losses[rank], gradients=rows(case, rank, own), parameters=rows(case, rank, dict(held(net)))
            ))  # fmt: skip
    return traces


def _backward(case: ParameterCase, nets: list[Any], step: int) -> tuple[list[Tensor], list[dict[str, Tensor | None]]]:
    losses, gradients = [], []
    for rank, net in enumerate(nets):
        named = dict(net.named_parameters())
        case.freeze(named, step)
        loss = case.loss(net(case.inputs(step, rank)), step, rank)
        live = [parameter for parameter in named.values() if parameter.requires_grad]
        found = dict(zip(live, torch.autograd.grad(loss, live) if live else (), strict=True))
        losses.append(loss.detach())
        gradients.append({name: found.get(parameter) for name, parameter in named.items()})
    return losses, gradients


def _means(case: ParameterCase, gradients: list[dict[str, Tensor | None]]) -> dict[str, Tensor | None]:
    means: dict[str, Tensor | None] = {}
    for name in gradients[0]:
        parts = [each[name] for each in gradients]
        there = [part for part in parts if part is not None]
        means[name] = torch.stack(there).sum(0) / case.world_size if there else None
    return means


def _update(net: nn.Module, gradients: dict[str, Tensor | None], rate: float) -> None:
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            gradient = gradients[name]
            if gradient is not None:
                parameter.sub_(rate * gradient)


def held(net: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter."""
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def rows(case: ParameterCase, rank: int, tensors: dict[str, Any]) -> dict[str, Any]:
    """What one rank holds of these: its rows; of ignored ones all."""
    return {
        name: tensor if tensor is None or name in case.ignored else shard(tensor, case.shards, rank % case.shards)
        for name, tensor in tensors.items()
    }
