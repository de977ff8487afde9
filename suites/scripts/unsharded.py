"""What a script does to the unsharded model, and in which form each parameter must then be registered.

Two ranks whose forwards will give gradients 1 and 3, and then 5 and 7::

    accumulate             no gradient yet, on any rank
    forward, backward      the mean of all: (1 + 5) / 2 + (3 + 7) / 2 = 8

Imports no ``torch.distributed``.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

from suites.oracle.expected import Expected
from suites.oracle.unsharded import State, Unsharded
from suites.scripts.acts import Play
from suites.scripts.cases import ScriptCase, guided


class UnshardedScript(Unsharded):
    """The unsharded model in the middle of a script."""

    def __init__(self, case: ScriptCase, working: bool) -> None:
        self.play = Play(case)
        super().__init__(case, working)

    def do(self, action: str, shown: Collection[str]) -> State:
        """Do an act; all that can be seen then."""
        self.play.do(action)
        return super().do(action, shown)

    def see_registered(self) -> State:
        """Of every parameter whether it trains, and what is known of its form; if it is whole, its values."""
        forms, readable = self.play.registered(), self.play.readable()
        return {
            name: {
                "trains": p.requires_grad,
                **({"form": forms[name]} if name in forms else {}),
                **({"value": p.detach().clone()} if name in readable else {}),
            }
            for name, p in self.named.items()
        }

    def forward(self, module: str) -> list[State]:
        """Every rank's loss, and in which dtype it must be."""
        dtype = f"torch.{self.case.computed or self.case.dtype}"
        return [{**found, "dtypes": [dtype]} for found in super().forward(module)]

    def guide(self, _: str) -> list[State]:
        """The gradients that inputs have of each rank's frozen copy."""
        self.freeze("")
        found = [
            guided(self.case, net, self.case.inputs(self.batches, rank, self.dtype), self.batches, rank)
            for rank, net in enumerate(self.copies)
        ]
        self.thaw("")
        self.batches += 1
        return found

    def assign(self, module: str) -> None:
        """Negate what is in a module, and begin an optimizer."""
        self.negate(module)
        self.optimizer = self.case.optimizer_of(self.named)

    swap = assign

    def save(self, *_: str) -> list[State]:
        """Keep the state of net and optimizer, in both forms that it has."""
        return super().save("sharded", "full")

    def recall(self, _: str) -> None:
        """Give the optimizer what was kept of it, be it nothing."""
        self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))


def expected(case: ScriptCase) -> Expected:
    """What every act must lead to."""
    return Expected(case, UnshardedScript)
