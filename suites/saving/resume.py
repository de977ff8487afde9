"""Training that never stopped: the unsharded twin of a net that is saved and resumed. No ``torch.distributed``.

Two ranks with gradients 1 and 3 before the stop, three with 0, 1 and 2 after it: the twin steps by 2, then by 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from suites.saving.chains import Chain, CheckpointCase


@dataclass(frozen=True)
class Twin:
    """The unsharded net after all steps: each batch's loss in the last, parameters, and what the optimizer keeps."""

    losses: list[Tensor]
    net: dict[str, Tensor]
    optimizer: dict[str, dict[str, Tensor]]

    def on_rank(self, case: CheckpointCase, number: int) -> dict[str, Any]:
        """What one rank that loads must see of it: the loss of its batch, and its part of everything else."""
        layout, buffers = case.loaded, dict(case.build().named_buffers())

        def part(name: str, full: Tensor) -> Tensor:
            return full if name in buffers or full.dim() == 0 else layout.part(number, name, full)

        kept = {n: {key: part(n, value) for key, value in entries.items()} for n, entries in self.optimizer.items()}
        net = {name: part(name, full) for name, full in self.net.items()}
        return {"loss": self.losses[number // layout.tp], "net": net, "optimizer": kept}


def never_stopped(case: CheckpointCase, further: int = 1) -> Twin:
    """Train in float64: the case's steps on the batches of the saved layout, then ``further`` on those of the other."""
    net = case.build().double()
    optimizer = case.make_optimizer(net.parameters())
    losses: list[Tensor] = []
    for number in range(case.steps + further):
        batches = (case.saved if number < case.steps else case.loaded).batches
        losses = [case.loss(net(case.inputs(number, place)), number, place) for place in range(batches)]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return Twin([loss.detach() for loss in losses], dict(net.state_dict()), kept(net, optimizer))


def kept(net: Chain, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """What the optimizer keeps, by names."""
    states = {name: optimizer.state[p] for name, p in net.named_parameters() if p in optimizer.state}
    return {name: {key: state[key] for key in sorted(state)} for name, state in states.items()}
