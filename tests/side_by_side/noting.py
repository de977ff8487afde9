"""What one rank notes while it plays a scenario: what it communicated in each action, and what is registered then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from harness.collective_trace.recorder import Entry
from harness.worlds.rank import Rank
from suites.oracle.layout import is_dtensor
from suites.scenarios.scenario import Scenario
from suites.scenarios.sharding import ShardedScenario, other_groups

#: What is noted of each action, in this order; an action that raises has its error, and is the last.
Noted = dict[str, Any]


def noted(rank: Rank, scenario: Scenario) -> list[Noted]:
    """A program: a note of how the net is made, and one of each action, up to the first that raises.

    ``does`` says which action; ``error`` the class of what it raised, None if it did not; ``collectives`` what was
    communicated with other ranks, in order; ``registered`` and ``gradients`` what is registered then, and which
    gradients there are.
    """
    notes: list[Noted] = []
    with other_groups(scenario):
        net: Any = None
        for action in ("make", *scenario.actions):
            with rank.collectives() as entries:
                error = None
                try:
                    if net is None:
                        net = ShardedScenario(rank, scenario)
                    else:
                        net.do(action, ())
                except Exception as raised:
                    error = raised
            held = {} if net is None else net.held
            notes.append(
                {
                    "does": action,
                    "error": error and type(error).__name__,
                    "collectives": [_spoken(entry) for entry in entries if len(entry["ranks"]) > 1],
                    "registered": {} if net is None else _registered(net.net),
                    "gradients": {name: _looks(p.grad) for name, p in held.items()},
                }
            )
            if error is not None:
                break
    return notes


def _spoken(entry: Entry) -> str:
    sent, received = entry["input"], entry["output"]
    return f"{entry['op']} {sent['numel']} → {received['numel']} {sent['dtype']} among {entry['ranks']}"


def _registered(net: nn.Module) -> Mapping[str, str]:
    return {name: f"{_looks(p)}{'' if p.requires_grad else ', frozen'}" for name, p in net.named_parameters()}


def _looks(tensor: Any) -> str:
    if tensor is None:
        return "none"
    form = f"DTensor {tensor.placements}" if is_dtensor(tensor) else "plain"
    return f"{form} {list(tensor.shape)} {tensor.dtype}"
