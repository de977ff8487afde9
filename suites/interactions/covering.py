"""Scenarios that have every possible combination of values, as few as are found quickly.

Three dimensions that are off or on take 8 scenarios for all combinations and 4 for all pairs::

    off off off      off on on      on off on      on on off

A greedy search, one scenario after the other: each starts from a combination that is still wanted, and takes of every
other dimension, those with most values first, the value that adds most. Values that cannot go together are left by
backtracking, so a combination is left out only if no scenario has it. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations, product

from hypothesis import strategies as st

from harness.trial import most_ranks
from harness.vendor import Feature
from harness.vendor.bounds import claims
from suites.scenarios.dimensions import DIMENSIONS
from suites.scenarios.rules import barred
from suites.scenarios.scenario import Scenario, with_values

#: Values of some dimensions: ``(("mesh", "4"), ("rows", "uneven"))``, in one order of the dimensions.
Combination = tuple[tuple[str, str], ...]
Values = Mapping[str, Sequence[str]]
#: The dimensions of which any run tries any two values together: by these, requirements tell their scenarios apart.
PLACES = ("mesh", "parallelism")
#: What values cost, by their dimensions and names.
COSTS = {(name, one.name): one.cost for name, some in DIMENSIONS.items() for one in some}
#: The dimensions of which a thorough run tries any three values together: when a group is gathered, freed and reduced.
CLOSE = ("runs", "wrapping", "mesh", "parallelism", "reshard", "recompute", "prefetch", "gradients")


def available(claims: Collection[Feature], ranks: int) -> dict[str, tuple[str, ...]]:
    """The values of every dimension that these claims and so many ranks allow."""
    return {
        name: tuple(one.name for one in values if one.ranks <= ranks and set(one.needs) <= set(claims))
        for name, values in DIMENSIONS.items()
    }


@lru_cache
def covering(claims: frozenset[Feature], ranks: int, strength: int = 2) -> list[Scenario]:
    """Scenarios that have every possible value, or pair of values, or besides all triples of the close dimensions."""
    values = available(claims, ranks)
    largest_first = {name: values[name] for name in sorted(values, key=lambda name: -len(values[name]))}
    every = [one for one in _every(largest_first, strength) if not barred(dict(one))]
    wanted, found = set(every), []
    for one in every:
        if one in wanted and completed(one, values) is not None:
            chosen = completed(one, largest_first, wanted)
            assert chosen is not None
            wanted -= set(combinations_of(chosen.items()))
            found.append(with_values(chosen))
    return found


def _every(values: Values, strength: int) -> Iterator[Combination]:
    """What scenarios are made for, as far as it is possible."""
    if strength == 1:
        yield from combined({name: values[name] for name in values if name in PLACES}, 2)
    yield from combined(values, min(strength, 2))
    if strength > 2:
        yield from combined({name: values[name] for name in values if name in CLOSE}, strength)


def combinations_of(chosen: Collection[tuple[str, str]]) -> Iterator[Combination]:
    """The combinations that these values have and that some array may have: of one, of two, and of three close ones."""
    close = [one for one in chosen if one[0] in CLOSE]
    return chain(combinations(chosen, 1), combinations(chosen, 2), combinations(close, 3))


def combined(values: Values, strength: int) -> Iterator[Combination]:
    """Every combination of values of so many dimensions, possible or not."""
    for names in combinations(values, strength):
        for chosen in product(*(values[name] for name in names)):
            yield tuple(zip(names, chosen, strict=True))


def completed(
    start: Combination, values: Values, wanted: Collection[Combination] = frozenset()
) -> dict[str, str] | None:
    """A scenario's values with these among them, and with much else that is wanted; None if there is none.

    Where nothing is wanted, others are default if they can be.
    """
    forced = {name: some[0] for name, some in values.items() if len(some) == 1}  # else found out in the depth
    return _search({**forced, **dict(start)}, values, wanted)


def _search(chosen: dict[str, str], values: Values, wanted: Collection[Combination]) -> dict[str, str] | None:
    if barred(chosen):
        return None
    name = next((name for name in values if name not in chosen), None)
    if name is None:
        return {name: chosen[name] for name in values}
    best = (
        sorted(values[name], key=lambda value: -_gain(chosen, name, value, values, wanted)) if wanted else values[name]
    )
    for value in best:
        found = _search({**chosen, name: value}, values, wanted)
        if found is not None:
            return found
    return None


def _gain(chosen: Mapping[str, str], name: str, value: str, values: Values, wanted: Collection[Combination]) -> int:
    """How many combinations that are wanted one more value adds, less what it costs."""
    known = [(other, chosen[other] if other != name else value) for other in values if other in chosen or other == name]
    return sum((name, value) in one and one in wanted for one in combinations_of(known)) - COSTS[name, value]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A scenario of any values, one dimension after the other, each of those that the earlier ones leave."""
    values = available(claims(), most_ranks())
    chosen: dict[str, str] = {}
    for name in DIMENSIONS:
        fits = [value for value in values[name] if completed((*chosen.items(), (name, value)), values) is not None]
        chosen[name] = draw(st.sampled_from(fits))
    return with_values(chosen, seed=draw(st.integers(0, 2**16)))
