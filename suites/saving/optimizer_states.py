"""What optimizers keep, by names: the cases, and what the unsharded net's optimizer keeps. No ``torch.distributed``.

After one step by the mean gradient 2 of two ranks (1 and 3), Adam keeps of a weight of one element::

    {"state": {"0.weight": {"exp_avg": 0.2, "exp_avg_sq": 0.004, "step": 1.0}},
     "param_groups": [{"lr": 0.0625, "params": ["0.weight"]}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from suites.composition.compose import Call, ComposedCase
from suites.oracle.unsharded import Unsharded
from suites.saving.chains import make_optimizer

#: A net of a linear layer and two units, sharded in one of these ways.
PLANS: dict[str, tuple[Call, ...]] = {
    "whole": (Call("fully_shard"),),
    "units": (Call("fully_shard", "1"), Call("fully_shard", "2"), Call("fully_shard")),
    "policy": (Call("FULL_SHARD", chosen="Unit"),),
    "units alone": (Call("fully_shard", "1"), Call("fully_shard", "2")),
}


@dataclass(frozen=True)
class KeptCase(ComposedCase):
    """A net of units that is trained some steps in float64."""

    dtype: str = "float64"
    calls: tuple[Call, ...] = PLANS["units"]
    kind: str = "Adam"

    def shown(self, place: int) -> tuple[str, ...]:
        """After the last step all that its optimizer keeps."""
        return ("named",) if place == len(self.actions) - 2 else ()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """One of this kind."""
        return make_optimizer(self.kind, parameters)


class UnshardedUnits(Unsharded):
    """The unsharded net of units."""

    def see_named(self) -> dict[str, Any]:
        """What its optimizer keeps, by names."""
        groups = [{**group, "params": list(self.named)} for group in self.optimizer.state_dict()["param_groups"]]
        return {"state": in_order(self.see_optimizer()), "param_groups": list(map(in_order, groups)), "strays": []}


def in_order(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the order of keys, and lists for tuples, which come as lists from another rank."""
    return {key: [*value] if isinstance(value, tuple) else value for key, value in sorted(entries.items())}
