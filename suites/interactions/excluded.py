"""Which values and pairs no scenario has, and why: for the record, so that nothing is left out in silence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from harness.data.text import unique
from harness.trial import Excluded
from harness.vendor import Feature
from suites.interactions.covering import Combination, available, combined, completed, covering
from suites.scenarios.dimensions import DIMENSIONS, values_of
from suites.scenarios.rules import APART, IMPOSSIBLE, barred
from suites.scenarios.scenario import Scenario, with_values

#: The values of each dimension.
VALUES = {name: tuple(values_of(name)) for name in DIMENSIONS}


@lru_cache
def excluded(claimed: frozenset[Feature], ranks: int, strength: int = 2) -> list[Excluded]:
    """Every value and pair that no scenario has: not claimed, beyond the ranks, judged apart, or impossible."""
    rules = [Excluded("impossible", rule.reason, rule.values) for rule in IMPOSSIBLE if len(rule.values) == 2]
    apart = [Excluded("apart", rule.reason, rule.values) for rule in APART if len(rule.values) == 2]
    indirect = _indirect(claimed, ranks, strength) if strength > 1 else ()
    return [*_unavailable(claimed, ranks), *rules, *apart, *indirect]


def _unavailable(claimed: frozenset[Feature], ranks: int) -> Iterator[Excluded]:
    """Values that need what is not claimed, or more ranks than there are."""
    for name, values in DIMENSIONS.items():
        lacking, beyond = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for one in values:
            if why := _needs(one.needs, claimed):
                lacking[why].append(one.name)
            elif one.ranks > ranks:
                beyond[_too_few(one.ranks, ranks)].append(one.name)
        yield from (Excluded("not claimed", why, {name: names}) for why, names in lacking.items())
        yield from (Excluded("not run", why, {name: names}) for why, names in beyond.items())


def _needs(needs: Collection[Feature], claimed: frozenset[Feature]) -> str:
    lacking = sorted(str(one) for one in needs if one not in claimed)
    return f"needs {' and '.join(lacking)}" if lacking else ""


def _too_few(needed: int, ranks: int) -> str:
    return f"needs {needed} ranks, and there are {ranks}"


def _indirect(claimed: frozenset[Feature], ranks: int, strength: int) -> Iterator[Excluded]:
    """Pairs that no rule names, and that no scenario has all the same."""
    had = {pair for one in covering(claimed, ranks, strength) for pair in combinations(one.values.items(), 2)}
    for pair in combined(available(claimed, ranks), 2):
        if pair not in had and not barred(dict(pair)):
            whole = completed(pair, VALUES)
            values = {name: (value,) for name, value in pair}
            if whole is None:
                yield Excluded("impossible", _why(pair), values)
            else:
                yield _beyond(with_values(whole), claimed, ranks, values)


def _beyond(one: Scenario, claimed: frozenset[Feature], ranks: int, values: Mapping[str, Sequence[str]]) -> Excluded:
    lacking = _needs(one.needs, claimed)
    return (
        Excluded("not claimed", lacking, values)
        if lacking
        else Excluded("not run", _too_few(one.world_size, ranks), values)
    )


def _why(pair: Combination) -> str:
    """The reasons that leave no value of a third dimension, joined."""
    for name in VALUES:
        chosen = [{**dict(pair), name: value} for value in VALUES[name]]
        reasons = [barred(one) for one in chosen]
        if all(reasons) and name not in dict(pair):
            return ", and ".join(unique(reasons))
    return "together they leave no value of another dimension"
