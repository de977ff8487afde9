"""In what two subjects differ in a scenario: rank by rank, action by action, and what of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.trial import Trial
from harness.vendor.load import Subject
from suites.scenarios.scenario import Scenario
from tests.side_by_side.noting import Noted, noted

#: What is compared of each action, in this order.
ASPECTS = ("error", "collectives", "registered", "gradients")
#: Of how many parameters a difference is shown.
SHOWN = 3


@dataclass(frozen=True)
class Difference:
    """What torch and the reference each have on a rank after an action."""

    rank: int
    action: str
    aspect: str
    torch: Any
    reference: Any

    @property
    def kind(self) -> str:
        """Under which it is counted: ``"collectives of backward"``."""
        return f"{self.aspect} of {self.action.partition(' ')[0]}"

    def __str__(self) -> str:
        lines = self._lines()
        more = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return "\n".join([f"{self.aspect} after {self.action}, rank {self.rank}:", *lines[:SHOWN], *more])

    def _lines(self) -> list[str]:
        if not isinstance(self.torch, dict):
            return [f"  torch      {self.torch}", f"  reference  {self.reference}"]
        names = sorted({*self.torch, *self.reference})
        pairs = [(name, self.torch.get(name), self.reference.get(name)) for name in names]
        return [f"  {name}: torch {one}, reference {other}" for name, one, other in pairs if one != other]


def differences(torch: Sequence[list[Noted]], reference: Sequence[list[Noted]]) -> Iterator[Difference]:
    """All of what ranks noted, as long as both go on."""
    for rank, both in enumerate(zip(torch, reference, strict=True)):
        for one, other in zip(*both, strict=False):
            for aspect in ASPECTS:
                if one[aspect] != other[aspect]:
                    yield Difference(rank, one["does"], aspect, one[aspect], other[aspect])


class Pair:
    """Torch and the reference on ranks that are threads; a context that ends them."""

    def __init__(self, ranks: int = 4) -> None:
        self._trials = [Trial("threads", Subject(name, "gloo"), ranks) for name in ("torch", "reference")]

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for trial in self._trials:
            trial.close()

    def differences(self, scenario: Scenario) -> list[Difference]:
        """Play a scenario on both. Raises SubjectFailure if a rank ends without its notes."""
        torch, reference = (trial.run(noted, scenario) for trial in self._trials)
        return list(differences(torch, reference))
