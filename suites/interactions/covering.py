"""Choosing scenarios: few that have every pair, or triple, of values which can go together.

Three features that are off or on take 8 scenarios for all combinations and 4 for all pairs::

    off off off      off on on      on off on      on on off

The greedy search is allpairspy's. What it leaves out, since it does not look ahead at what cannot go together, is added
one scenario at a time, so that a pair is left out only if no scenario has it. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from allpairspy import AllPairs  # type: ignore[import-untyped]
from hypothesis import strategies as st

from harness.trial import claims, most_ranks
from harness.vendor import Feature
from suites.interactions.dimensions import DIMENSIONS, conflict, judged_apart
from suites.interactions.scenario import Scenario, with_values

#: Values of some dimensions: ``(("mesh", "4"), ("rows", "uneven"))``, in the order of the dimensions.
Combination = tuple[tuple[str, str], ...]
NAMES = tuple(DIMENSIONS)


def available(claims: Collection[Feature], ranks: int) -> dict[str, tuple[str, ...]]:
    """The values of every dimension that these claims and so many ranks allow."""
    return {
        name: tuple(one.name for one in values if one.ranks <= ranks and set(one.needs) <= set(claims))
        for name, values in DIMENSIONS.items()
    }


@lru_cache
def covering(
    claims: frozenset[Feature], ranks: int, strength: int = 2, names: tuple[str, ...] = NAMES
) -> list[Scenario]:
    """Scenarios that have every possible combination of ``strength`` values of these dimensions; the others default."""
    values = {name: of for name, of in available(claims, ranks).items() if name in names}
    wanted = {one for one in combined(values, strength) if completed(one, values) is not None}
    found = []
    for row in AllPairs(list(values.values()), filter_func=lambda row: _is_possible(names, row), n=strength):
        found.append(with_values(dict(zip(names, row, strict=True))))
        wanted -= set(combinations(zip(names, row, strict=True), strength))
    while wanted:
        chosen = _greedy(sorted(wanted), values)
        found.append(with_values(chosen))
        wanted -= set(combinations(chosen.items(), strength))
    return found


def _is_possible(names: Sequence[str], row: Sequence[str]) -> bool:
    chosen = dict(zip(names, row, strict=False))
    return not (conflict(chosen) or judged_apart(chosen))


def combined(values: Mapping[str, Sequence[str]], strength: int) -> Iterable[Combination]:
    """Every combination of values of so many dimensions, possible or not."""
    for names in combinations(values, strength):
        found: list[Combination] = [()]
        for name in names:
            found = [(*one, (name, value)) for one in found for value in values[name]]
        yield from found


def completed(start: Combination, values: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """A scenario's values with these among them, the others default where they can be; None if there is none."""
    return _search({**dict(start)}, [name for name in values if name not in dict(start)], values)


def _search(chosen: dict[str, str], open_: list[str], values: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    if conflict(chosen) or judged_apart(chosen):
        return None
    if not open_:
        return {name: chosen[name] for name in values}
    for value in values[open_[0]]:
        found = _search({**chosen, open_[0]: value}, open_[1:], values)
        if found is not None:
            return found
    return None


def _greedy(wanted: Sequence[Combination], values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The values of a scenario with the first combination that is wanted, and with as many others as fit."""
    chosen = dict(wanted[0])
    for other in wanted[1:]:
        more = {**chosen, **dict(other)}
        if all(more[name] == value for name, value in chosen.items()) and completed(tuple(more.items()), values):
            chosen = more
    full = completed(tuple(chosen.items()), values)
    assert full is not None
    return full


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A scenario of any values, one dimension after the other, each of those that the earlier ones leave."""
    values = available(claims(), most_ranks())
    chosen: dict[str, str] = {}
    for name in DIMENSIONS:
        fits = [value for value in values[name] if completed((*chosen.items(), (name, value)), values) is not None]
        chosen[name] = draw(st.sampled_from(fits))
    return with_values(chosen, seed=draw(st.integers(0, 2**16)))
