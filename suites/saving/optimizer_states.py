"""What optimizers keep, by names: the cases, and what the unsharded net's optimizer keeps. No ``torch.distributed``.

After one step by the mean gradient 2 of two ranks (1 and 3), Adam keeps of a weight of one element::

    {"state": {"0.weight": {"exp_avg": 0.2, "exp_avg_sq": 0.004, "step": 1.0}},
     "param_groups": [{"lr": 0.0625, "params": ["0.weight"]}]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.data.case import Case
from suites.composition.compose import Composite
from suites.kit.cases import draw, fill, mixed
from suites.saving.chains import BATCH, make_optimizer

Kept = dict[str, Any]


@dataclass(frozen=True)
class KeptCase(Case):
    """A net of units that is trained some steps in float64; with ``one_batch``, all ranks see the same data."""

    world_size: int
    net: Composite
    optimizer: str = "Adam"
    steps: int = 1
    one_batch: bool = False
    seed: int = 0

    def build(self) -> nn.Sequential:
        """The net with weights drawn from the seed."""
        net = self.net.build().double()
        fill(net, self.seed, exact=False)
        return net

    def inputs(self, step: int, rank: int) -> Tensor:
        """The batch of one rank in one step."""
        return draw((BATCH, self.net.dim), mixed(self.seed, 1, step, self._place(rank)), exact=False)

    def loss(self, outputs: Tensor, step: int, rank: int) -> Tensor:
        """A scalar: the outputs weighted by fixed numbers."""
        weights = draw(tuple(outputs.shape), mixed(self.seed, 2, step, self._place(rank)), exact=False)
        return (outputs * weights.to(outputs)).sum()

    def _place(self, rank: int) -> int:
        return 0 if self.one_batch else rank


def unsharded(case: KeptCase) -> Kept:
    """What the optimizer of the unsharded net keeps after all steps."""
    net = case.build()
    optimizer = make_optimizer(case.optimizer, net.parameters(), 1 / 16)
    for step in range(case.steps):
        losses = [case.loss(net(case.inputs(step, rank)), step, rank) for rank in range(case.world_size)]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return by_name(optimizer.state_dict(), [name for name, _ in net.named_parameters()])


def by_name(kept: Kept, names: list[str]) -> Kept:
    """An optimizer's own state dict, which knows parameters by numbers, with names instead."""
    state = {names[number]: {key: entry[key] for key in sorted(entry)} for number, entry in kept["state"].items()}
    groups = [{**group, "params": [names[number] for number in group["params"]]} for group in kept["param_groups"]]
    return {"state": state, "param_groups": [sorted_keys(group) for group in groups]}


def sorted_keys(group: Kept) -> Kept:
    """The same in the order of keys."""
    return {key: group[key] for key in sorted(group)}
