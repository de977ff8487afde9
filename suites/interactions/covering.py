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
from suites.scenarios.dimensions import DIMENSIONS, conflict, judged_apart
from suites.scenarios.scenario import Scenario, with_values

#: Values of some dimensions: ``(("mesh", "4"), ("rows", "uneven"))``, in the order of the dimensions.
Combination = tuple[tuple[str, str], ...]


def available(claims: Collection[Feature], ranks: int) -> dict[str, tuple[str, ...]]:
    """The values of every dimension that these claims and so many ranks allow."""
    return {
        name: tuple(one.name for one in values if one.ranks <= ranks and set(one.needs) <= set(claims))
        for name, values in DIMENSIONS.items()
    }


@lru_cache
def covering(claims: frozenset[Feature], ranks: int, strength: int = 2) -> list[Scenario]:
    """Scenarios that have every possible combination of ``strength`` values."""
    values = available(claims, ranks)
    wanted = {one for one in combined(values, strength) if completed(one, values) is not None}
    rows = AllPairs(list(values.values()), filter_func=lambda row: not _is_left_out(_chosen(row)), n=strength)
    found = [_chosen(row) for row in rows]
    for chosen in found:
        wanted -= set(combinations(chosen.items(), strength))
    while wanted:
        found.append(_greedy(sorted(wanted), values))
        wanted -= set(combinations(found[-1].items(), strength))
    return [with_values(chosen) for chosen in found]


def _chosen(row: Sequence[str]) -> dict[str, str]:
    """The values of a row of the array, or of its beginning, by dimension."""
    return dict(zip(DIMENSIONS, row, strict=False))


def _is_left_out(chosen: Mapping[str, str]) -> bool:
    return bool(conflict(chosen) or judged_apart(chosen))


def combined(values: Mapping[str, Sequence[str]], strength: int) -> Iterable[Combination]:
    """Every combination of values of so many dimensions, possible or not."""
    for names in combinations(values, strength):
        found: list[Combination] = [()]
        for name in names:
            found = [(*one, (name, value)) for one in found for value in values[name]]
        yield from found


def completed(start: Combination, values: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """A scenario's values with these among them, the others default where they can be; None if there is none."""
    chosen = dict(start)
    return _search(chosen, [name for name in values if name not in chosen], values)


def _search(chosen: dict[str, str], open_: list[str], values: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    if _is_left_out(chosen):
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
