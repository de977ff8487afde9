"""Choosing scenarios: few that have every pair, or triple, of values which can go together; and why others are not had.

Three features that are off or on take 8 scenarios for all combinations and 4 for all pairs::

    off off off      off on on      on off on      on on off

The greedy search is allpairspy's. What it leaves out, since it does not look ahead at what cannot go together, is added
one scenario at a time, so that a pair is left out only if no scenario has it. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from allpairspy import AllPairs  # type: ignore[import-untyped]
from hypothesis import strategies as st

from harness.data.text import unique
from harness.trial import Excluded, claims, most_ranks
from harness.vendor import Feature
from suites.interactions.dimensions import APART, DIMENSIONS, IMPOSSIBLE, conflict, judged_apart, values_of
from suites.interactions.scenario import Scenario, with_values

#: Values of some dimensions: ``(("mesh", "4"), ("rows", "uneven"))``, in the order of the dimensions.
Combination = tuple[tuple[str, str], ...]
#: The values of each dimension.
VALUES = {name: tuple(values_of(name)) for name in DIMENSIONS}


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


# What is left out, for the record.


@lru_cache
def excluded(claimed: frozenset[Feature], ranks: int, strength: int = 2) -> list[Excluded]:
    """Every value and pair that no scenario has: not claimed, beyond the ranks, judged apart, or impossible."""
    rules = [Excluded("impossible", rule.reason, rule.values) for rule in IMPOSSIBLE if len(rule.values) == 2]
    apart = [Excluded("apart", rule.reason, rule.values) for rule in APART if len(rule.values) == 2]
    indirect = _indirect(claimed, ranks) if strength > 1 else ()
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


def _indirect(claimed: frozenset[Feature], ranks: int) -> Iterator[Excluded]:
    """Pairs that no rule names, and that no scenario has all the same."""
    had = {pair for one in covering(claimed, ranks) for pair in combinations(one.values.items(), 2)}
    for pair in combined(available(claimed, ranks), 2):
        if pair not in had and not conflict(dict(pair)) and not judged_apart(dict(pair)):
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
        reasons = [conflict(one) or judged_apart(one) for one in chosen]
        if all(reasons) and name not in dict(pair):
            return ", and ".join(unique(reasons))
    return "together they leave no value of another dimension"


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A scenario of any values, one dimension after the other, each of those that the earlier ones leave."""
    values = available(claims(), most_ranks())
    chosen: dict[str, str] = {}
    for name in DIMENSIONS:
        fits = [value for value in values[name] if completed((*chosen.items(), (name, value)), values) is not None]
        chosen[name] = draw(st.sampled_from(fits))
    return with_values(chosen, seed=draw(st.integers(0, 2**16)))
