"""The optimizers of scenarios, of any named parameters: whole ones, or a rank's shards. No ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from suites.interactions.scenario import Scenario
from suites.interactions.script import MIDDLE
from suites.kit.stepping import OwnSGD

#: Adam divides by the root of a mean of squares plus ``eps``; see ``resumed`` in ``suites/kit/tolerance.py``.
RATE = 2.0**-4
ADAM: dict[str, Any] = {"lr": RATE, "eps": RATE}

MAKE: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "SGD": lambda params: OwnSGD(params, 0.5),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.25, momentum=0.5),
    "Adam": lambda params: torch.optim.Adam(params, **ADAM),
    "AdamW": lambda params: torch.optim.AdamW(params, weight_decay=0.25, **ADAM),
}


def optimizer(scenario: Scenario, named: Mapping[str, Any]) -> torch.optim.Optimizer:
    """A new optimizer of these parameters, or of some of them; two groups have an entry of the user's own each."""
    kept = {name: p for name, p in named.items() if scenario.optimizer != "left out" or not name.startswith(MIDDLE)}
    params = list(kept.values())
    if scenario.optimizer == "groups":
        half = len(params) // 2
        groups = [
            {"params": params[:half], "weight_decay": 0.5, "note": "first"},
            {"params": params[half:], "lr": RATE / 2, "note": "second"},
        ]
        return MAKE["AdamW"](groups)
    if scenario.optimizer == "reversed":
        return MAKE["Adam"](params[::-1])
    return MAKE["momentum" if scenario.optimizer == "left out" else scenario.optimizer](params)


def vary(optimizer: torch.optim.Optimizer) -> None:
    """Halve every rate, and change every entry of the user's own, as schedulers do."""
    for group in optimizer.param_groups:
        group["lr"] /= 2
        group.update({"note": group["note"] + ", later"} if "note" in group else {})


def settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What a user reads of each parameter group: rate, weight decay, and entries of the user's own."""
    keys = ("lr", "weight_decay", "momentum", "note")
    return [{key: group[key] for key in keys if key in group} for group in optimizer.param_groups]


def kept(optimizer: torch.optim.Optimizer, named: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """The tensors that the optimizer keeps of each parameter, by its name."""
    return {
        name: {key: value for key, value in sorted(optimizer.state[p].items()) if isinstance(value, Tensor)}
        for name, p in named.items()
        if optimizer.state.get(p)
    }
