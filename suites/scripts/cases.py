"""Scripts as data: a net, a plan, and acts in an order that is legal, as a person would write them down.

The root is meant where no module is named::

    ScriptCase(2, net, groups, acts=("forward", "backward oldest", "step", "save", "unshard blocks.0", "load full"))

``acts.py`` says which acts there are and when each is legal. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from suites.generated.net_cases import GeneratedCase, Group, group_of
from suites.kit.nets import Block, Net, skeleton


@dataclass(frozen=True)
class ScriptCase(GeneratedCase):
    """A net, a plan, and what is done with it, by SGD with momentum. With a plain net all is exact, on integers.

    ``computed`` is the dtype of computing and reducing, if it is not that of the parameters. ``offloaded`` parameters
    rest on the CPU.
    """

    computed: str = ""
    offloaded: bool = False

    learning_rate = 0.125
    #: So that the optimizer has something to keep.
    momentum = 0.5

    def shown(self, place: int) -> Sequence[str]:
        """After every act everything, and what the user has kept of gradients."""
        kept = ("stashed",) if "stash" in self.acts[: place + 1] else ()
        return ("parameters", "gradients", "optimizer", "settings", "buffers", "registered", *kept)

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(named.values(), lr=self.learning_rate, momentum=self.momentum)


def guided(case: ScriptCase, net: Any, given: dict[str, Any], *which: int) -> dict[str, Any]:
    """A pass of a frozen net, for the gradient of what it is given: the loss, and that."""
    given["x"].requires_grad_()
    [loss] = case.losses(net(**given), *which)
    loss.backward()
    return {"loss": loss.detach(), "gradient of inputs": given["x"].grad}


def plain(*acts: str, **changes: Any) -> ScriptCase:
    """A script for two blocks, of which the first is sharded by itself, on two ranks that do not divide their rows."""
    block = Block("linear")
    net, groups = Net(3, (block, block), plain=True), (Group(("blocks.0",)), Group())
    return replace(ScriptCase(world_size=2, net=net, groups=groups, batch=1), acts=acts, **changes)


def owners(case: GeneratedCase) -> dict[str, str]:
    """Of every parameter the group that has it, by the first of the group's modules."""
    return {name: group_of(case, name).modules[0] for name, _ in skeleton(case.net).named_parameters()}
