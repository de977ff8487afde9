"""What each rank must show after every action of a scenario, and how far off it may be.

[Note: scenarios]
The oracle is the unsharded model in float64. Let e be how far it is off when it rounds as ranks do, each dtype where
the policy has it: so much does this net, with these numbers, magnify roundings. For a scenario in float64 it rounds in
float32, and e counts 2**-29 of itself. Sharding adds the roundings of the mean over n ranks, at most (n + 1) · u · m
with u the unit roundoff of the coarsest dtype and m the mean of absolute values (see general cases in
``tolerance.py``, where the second factor comes from)::

    allowed = SAMPLES · max(e) + STEPS_FACTOR · (n + 1) · u · max(m)

with maxima over each parameter with its gradients, buffer, or loss, and all actions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from harness.data.comparison import Allowance
from suites.generated.net_tolerance import last_key, measured
from suites.interactions.oracle import State, played
from suites.interactions.scenario import Scenario
from suites.interactions.script import script
from suites.interactions.wrapping import Layout
from suites.kit.tolerance import STEPS_FACTOR
from suites.scenarios.script_baseline import tensors_of

#: How much larger a rounding error may be than the one sample of it that e is: small tensors behind norms and Adam.
SAMPLES = 32.0


class Expected:
    """What is expected in a scenario; ``within`` is how far off results may be."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.layout, self.actions = scenario, Layout(scenario), script(scenario)
        self.wide, magnitudes = played(scenario, working=False)
        rounded, _ = played(scenario, working=True)
        self.within = allowed(scenario, rounded, self.wide, magnitudes)

    def on_rank(self, place: int, rank: int) -> State:
        """What one rank must show after one action."""
        seen = self.wide[place]
        due: dict[str, Callable[[], Any]] = {
            "found": lambda: self.found(seen["found"][rank], rank),
            "parameters": lambda: self.parts(seen["parameters"], rank),
            "gradients": lambda: self.parts(seen["gradients"], rank),
            "optimizer": lambda: {name: self.parts(each, rank) for name, each in seen["optimizer"].items()},
            "settings": lambda: seen["settings"],
            "facts": lambda: {name: self.facts(name, *each) for name, each in seen["facts"].items()},
            "buffers": lambda: seen["buffers"][rank],
        }
        return {name: due[name]() for name in seen}

    def parts(self, tensors: dict[str, Any], rank: int) -> dict[str, Any]:
        """A rank's parts of whole tensors; a count, which has no dims, is everyone's."""
        return {
            name: full if full is None or full.dim() == 0 else self.layout.part(rank, full)
            for name, full in tensors.items()
        }

    def found(self, found: State, rank: int) -> State:
        """What an action gives: of a state, its form's part."""
        if "net" not in found:
            return found
        net, form = found["net"], self.scenario.form
        if form == "sharded":
            net = {name: self.layout.part(rank, full) if name in found["cut"] else full for name, full in net.items()}
        return {"net": {} if form == "rank zero" and rank else net}

    def facts(self, name: str, full: Tensor, trains: bool, has_gradient: bool) -> State:
        """What a sharded parameter says of itself; its gradient has its dtype."""
        dtype = "torch.float16" if name.endswith("table") else str(self.scenario.storage)
        gradient = dtype if has_gradient else None
        return {**self.layout.facts(full, trains), "dtype": dtype, "gradient": gradient}


def allowed(
    scenario: Scenario, rounded: list[State], wide: list[State], magnitudes: list[tuple[str, Tensor]]
) -> Allowance:
    """The bound of the note, by the name that ends a path."""
    errors, sizes = measured(tensors_of(rounded), tensors_of(wide), magnitudes)
    unit = max(torch.finfo(dtype).eps / 2 for dtype in (scenario.storage, *scenario.policy.values()))
    scale = 2.0**-29 if scenario.storage == torch.float64 else 1.0
    bounds = {
        name: SAMPLES * scale * errors[name] + STEPS_FACTOR * (scenario.world_size + 1) * unit * size
        for name, size in sizes.items()
    }
    return lambda path, want: bounds.get(last_key(path), 0.0)


@lru_cache(maxsize=64)
def expected(scenario: Scenario) -> Expected:
    """The same for the same scenario: both worlds ask."""
    return Expected(scenario)
