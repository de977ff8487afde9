"""What ``checkpoint`` does by its options: contexts, and checks.

With a ``context_fn``, a module that is recomputed leaves this log::

    forward in, run, forward out        recompute in, run, recompute out
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from harness.worlds.rank import Rank
from suites.composition.recompute import RecomputeCase, chain, checkpointed


def contexts_entered(rank: Rank, case: RecomputeCase) -> list[str]:
    """What happened in what order, of one pass of a net whose last layer is recomputed with a ``context_fn``."""
    log: list[str] = []

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        log.append(f"{name} in")
        try:
            yield
        finally:
            log.append(f"{name} out")

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return noted("forward"), noted("recompute")

    net = chain(rank, case, recompute=False)
    net.each[-1].log = log
    checkpointed(rank, net.each[-1], context_fn=contexts, **case.options())
    output = net(*case.inputs(rank))
    log.append("backward")
    output.sum().backward()
    return log


RUN = "run in torch.float32"
CONTEXTS = ["forward in", RUN, "forward out", "backward", "recompute in", RUN, "recompute out"]


class Fickle(nn.Module):
    """``x · w``, where from the second run on ``w`` has one more dim of size 1: the same numbers by other tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        """``(2,)`` to ``(2,)``."""
        self.runs += 1
        return (x * (self.weight if self.runs == 1 else self.weight[None])).reshape(2)


def recomputes_otherwise(rank: Rank, case: RecomputeCase) -> Tensor | None:
    """The gradient of an input, by a weight that is saved with other dims when it is recomputed."""
    net = Fickle().to(rank.device)
    checkpointed(rank, net, **case.options())
    x = torch.ones(2, device=rank.device, requires_grad=True)
    net(x).sum().backward()
    return x.grad


class Scaled(nn.Module):
    """``x · debug · early_stop``, by keywords that ``checkpoint`` has as well."""

    def forward(self, x: Tensor, *, debug: float = 1.0, early_stop: float = 1.0) -> Tensor:
        """``(2,)`` to ``(2,)``."""
        return x * debug * early_stop


def called_by_its_keywords(rank: Rank, case: RecomputeCase) -> Tensor | None:
    """The gradient of an input, of a module that is called with such keywords."""
    net = Scaled()
    checkpointed(rank, net, **case.options())
    x = torch.ones(2, device=rank.device, requires_grad=True)
    net(x, debug=2.0, early_stop=3.0).sum().backward()
    return x.grad


class Ending(nn.Module):
    """``x · w`` and two random numbers, and then the end, which nothing is needed of in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.ends = 0

    def forward(self, x: Tensor) -> Tensor:
        """``(2,)`` to ``(2,)``."""
        result = x * (self.weight * torch.rand(2).to(x.device))
        self.ends += 1
        return result


def ended(rank: Rank, case: RecomputeCase, options: dict[str, bool]) -> dict[str, Any]:
    """How often a module has come to its end that is recomputed with options, and what is drawn at random after it."""
    net = Ending().to(rank.device)
    checkpointed(rank, net, **options)
    torch.manual_seed(case.seed)
    net(torch.ones(2, device=rank.device)).sum().backward()
    return {"ends": net.ends, "drawn next": torch.rand(2)}


def drawn(seed: int, runs: int) -> Tensor:
    """What is drawn after so many runs of the module."""
    torch.manual_seed(seed)
    return [torch.rand(2) for _ in range(runs + 1)][-1]
