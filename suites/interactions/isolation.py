"""The cause of a failure: the fewest values with which a scenario still fails.

A scenario of twelve special values that fails is tried without one after the other; what cannot be left out remains::

    fails when recompute=block is combined with prefetch=forward; passes with either alone

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from suites.interactions.dimensions import DEFAULTS, conflict
from suites.interactions.scenario import Scenario, with_values

#: Whether a scenario fails.
Fails = Callable[[Scenario], bool]


@dataclass(frozen=True)
class Cause:
    """The smallest failing scenario that was found; ``needed`` are values that the others cannot be without."""

    scenario: Scenario

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.scenario.special.items()]
        if not words:
            return "fails with nothing special"
        if len(words) == 1:
            return f"fails with {words[0]}; passes without"
        alone = "either alone" if len(words) == 2 else f"any {len(words) - 1} of them"
        return f"fails when {' and '.join(words[:-1])} is combined with {words[-1]}; passes with {alone}"

    def explains(self, scenario: Scenario) -> bool:
        """Whether a scenario has all these values."""
        return self.scenario.special.items() <= scenario.special.items()

    def avoided(self, scenario: Scenario, others: Iterable[Cause]) -> Scenario | None:
        """The scenario with one of these values at its default, so that no cause explains it; None if there is none."""
        for name in self.scenario.special:
            less = without(scenario.special, name)
            if less is not None and not any(cause.explains(with_values(less)) for cause in (self, *others)):
                return with_values(less, scenario.seed)
        return None


def isolated(scenario: Scenario, fails: Fails) -> Cause:
    """The cause of a failing scenario's failure: no single value more can be left out."""
    chosen, smaller = scenario.special, True
    while smaller:
        smaller = False
        for name in list(chosen):
            less = without(chosen, name)
            if less is not None and fails(with_values(less, scenario.seed)):
                chosen, smaller = less, True
    return Cause(with_values(chosen, scenario.seed))


def without(special: Mapping[str, str], name: str) -> dict[str, str] | None:
    """The other values, if they can go together."""
    less = {other: value for other, value in special.items() if other != name}
    return None if conflict({**DEFAULTS, **less}) else less
