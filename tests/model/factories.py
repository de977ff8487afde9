"""Factories of users' own models: one that is right, and what can be wrong with one."""

from __future__ import annotations

import random
import urllib.request
from typing import Any

import torch
from torch import nn

from reference_models.nets.transformer import Transformer
from suites.model.factory import Model

not_a_function = 3


def decoder() -> Any:
    """A small decoder with a tied head."""
    return Transformer(layers=4), torch.randint(0, 8, (2, 8))


def linears(*more: nn.Module) -> nn.Sequential:
    """Three layers, and more."""
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), *more)


def everything() -> Any:
    """All that a factory may say, in float64; its rows are as many as no number of ranks divides."""

    class Dict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleDict({"in": nn.Linear(3, 5), "out": nn.Linear(5, 3)})
            self.register_buffer("offset", torch.rand(3))

        def forward(self, x: torch.Tensor, more: list[torch.Tensor]) -> dict[str, Any]:
            return {"y": [self.steps["out"](self.steps["in"](x).tanh()) + self.offset + more[0]]}

    return Model(
        Dict().double(),
        inputs=lambda number: {"x": torch.full((2, 3), number / 4.0 + 1), "more": [torch.ones(3)]},
        loss=lambda found: found["y"][0].square().sum(),
        wrap=("steps.in", "steps.out"),
    )


def net_alone() -> Any:
    """No inputs."""
    return linears()


def of_two_others() -> Any:
    """No net."""
    return "net", torch.rand(2, 4)


def takes_an_argument(size: int) -> Any:
    """Cannot be called without one."""
    return linears(), torch.rand(2, size)


def downloads() -> Any:
    """Asks the network."""
    urllib.request.urlopen("http://models.example.org/net", timeout=1)
    return decoder()


def without_parameters() -> Any:
    """Nothing to shard."""
    return nn.Tanh(), torch.rand(2, 4)


def in_half() -> Any:
    """Of a dtype for which there is no bound."""
    return linears().bfloat16(), torch.rand(2, 4).bfloat16()


def on_meta() -> Any:
    """Without numbers."""
    with torch.device("meta"):
        return linears(), torch.rand(2, 4)


def other_weights() -> Any:
    """Draws numbers that no seed fixes."""
    net = linears()
    nn.init.constant_(net[0].weight, random.SystemRandom().random())
    return net, torch.rand(2, 4)


def other_inputs() -> Any:
    """The same of inputs."""
    return linears(), torch.rand(2, 4) * random.SystemRandom().random()


def same_batches() -> Any:
    """Nothing that rolling changes."""
    return linears(), torch.ones(2, 4)


def wraps_what_is_not_there() -> Any:
    """A name that the net has not."""
    return Model(linears(), torch.rand(2, 4), wrap=("0", "layer"))


def wraps_a_list() -> Any:
    """A container."""
    return Model(Transformer(), torch.randint(0, 8, (2, 8)), wrap=("layers",))


def tied_apart() -> Any:
    """One parameter in two wrapped modules."""
    net = linears()
    net[2].weight = net[0].weight
    return net, torch.rand(2, 4)


def does_not_fit() -> Any:
    """Forward fails."""
    return linears(), torch.rand(2, 3)


def float32_only() -> Any:
    """Forward fails in float64."""

    class Only(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.eye(4)

    return linears(Only()), torch.rand(2, 4)


def drops_out() -> Any:
    """Forward draws numbers."""
    return linears(nn.Dropout(0.5)), torch.rand(8, 4)


def two_losses() -> Any:
    """No scalar."""
    return Model(linears(), torch.rand(2, 4), loss=lambda found: found.sum(0))


def frozen() -> Any:
    """Nothing trains."""
    return linears().requires_grad_(False), torch.rand(2, 4)


def stuck() -> Any:
    """Gradients of zero."""
    return Model(linears(), torch.rand(2, 4), loss=lambda found: found.sum() * 0)


def not_finite() -> Any:
    """A loss that is no number."""
    return Model(linears(), torch.rand(2, 4), loss=lambda found: found.sum() / 0)
