"""Random scenarios, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

from harness.vendor import Feature
from suites.interactions.covering import available, completed
from suites.scenarios.dimensions import DEFAULTS, DIMENSIONS
from suites.scenarios.scenario import Scenario, with_values

#: How likely a dimension has a special value, if one goes together with those that others have already.
CHANCE = 1 / 3


def drawn(seed: int, ranks: int = 4, claims: Collection[Feature] = frozenset(Feature)) -> Iterator[Scenario]:
    """Scenarios without end, on up to so many ranks, of what is claimed."""
    draws, values = random.Random(seed), available(claims, ranks)
    while True:
        chosen: dict[str, str] = {}
        for name in draws.sample(sorted(DIMENSIONS), len(DIMENSIONS)):
            special = [value for value in values[name] if value != DEFAULTS[name]]
            fits = [value for value in special if completed((*chosen.items(), (name, value)), values) is not None]
            if fits and draws.random() < CHANCE:
                chosen[name] = draws.choice(fits)
        whole = completed(tuple(chosen.items()), values)
        assert whole is not None, "each value was chosen so that others complete it"
        yield with_values(whole, draws.randrange(2**16))
