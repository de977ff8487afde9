"""The optimizers of scenarios, of any named parameters: whole ones, or a rank's shards. No ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from suites.kit.stepping import OwnSGD
from suites.scenarios.script import MIDDLE

#: Adam divides by the root of a mean of squares plus ``eps``: one that is as large keeps steps of tiny gradients tiny.
RATE = 2.0**-4
ADAM: dict[str, Any] = {"lr": RATE, "eps": RATE}

MAKE: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "SGD": lambda params: OwnSGD(params, 0.5),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.25, momentum=0.5),
    "Adam": lambda params: torch.optim.Adam(params, **ADAM),
    "AdamW": lambda params: torch.optim.AdamW(params, weight_decay=0.25, **ADAM),
}


def optimizer(kind: str, named: Mapping[str, Any]) -> torch.optim.Optimizer:
    """A new optimizer of these parameters, or of some of them; two groups have an entry of the user's own each."""
    kept = {name: p for name, p in named.items() if kind != "left out" or not name.startswith(MIDDLE)}
    params = list(kept.values())
    if kind == "groups":
        half = len(params) // 2
        groups = [
            {"params": params[:half], "weight_decay": 0.5, "note": "first"},
            {"params": params[half:], "lr": RATE / 2, "note": "second"},
        ]
        return MAKE["AdamW"](groups)
    if kind == "reversed":
        return MAKE["Adam"](params[::-1])
    return MAKE["momentum" if kind == "left out" else kind](params)
