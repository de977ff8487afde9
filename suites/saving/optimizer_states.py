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

from suites.composition.compose import Act, ComposedCase
from suites.oracle.expected import Expected
from suites.saving.chains import make_optimizer

#: A net of a linear layer and two units, sharded in one of these ways.
PLANS: dict[str, tuple[Act, ...]] = {
    "whole": (Act("fully_shard"),),
    "units": (Act("fully_shard", "1"), Act("fully_shard", "2"), Act("fully_shard")),
    "policy": (Act("FULL_SHARD", chosen="Unit"),),
    "units alone": (Act("fully_shard", "1"), Act("fully_shard", "2")),
}


@dataclass(frozen=True)
class KeptCase(ComposedCase):
    """A net of units that is trained some steps in float64."""

    dtype: str = "float64"
    acts: tuple[Act, ...] = PLANS["units"]
    kind: str = "Adam"

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """One of this kind."""
        return make_optimizer(self.kind, parameters)


def unsharded(want: Expected) -> dict[str, Any]:
    """What the optimizer of the unsharded net keeps after all steps."""
    case: KeptCase = want.case
    named = dict(case.build().named_parameters())
    groups = case.optimizer(named.values()).state_dict()["param_groups"]
    [*_, last] = [seen for action, seen in zip(case.actions, want.wide, strict=True) if action == "step"]
    return {
        "state": last["optimizer"],
        "param_groups": [in_order({**group, "params": list(named)}) for group in groups],
    }


def in_order(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the order of keys."""
    return dict(sorted(entries.items()))
