"""What the record of a result says of scenarios: which are tried, and why the other pairs of values are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from harness.data.text import unique
from harness.trial import Excluded, Trial, claims
from harness.vendor import Feature
from suites.interactions.covering import Combination, available, combined, completed, covering
from suites.interactions.dimensions import APART, DIMENSIONS, IMPOSSIBLE, conflict, judged_apart, values_of
from suites.interactions.scenario import Scenario, with_values

#: The values of each dimension.
VALUES = {name: tuple(values_of(name)) for name in DIMENSIONS}


def planned(trial: Trial, scenarios: Sequence[Scenario], strength: int) -> None:
    """Tell the trial which scenarios will be tried, of an array that has all combinations of so many values."""
    left_out = excluded(claims(), trial.most_ranks, strength)
    trial.combinations.plan(VALUES, [one.values for one in scenarios], left_out)


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
        found: defaultdict[tuple[str, bool], list[str]] = defaultdict(list)
        for one in values:
            lacking = _needs(one.needs, claimed)
            if lacking or one.ranks > ranks:
                found[lacking or _too_few(one.ranks, ranks), bool(lacking)].append(one.name)
        for (why, is_claim), names in found.items():
            yield Excluded("not claimed" if is_claim else "not run", why, {name: names})


def _needs(needs: Sequence[Feature] | frozenset[Feature], claimed: frozenset[Feature]) -> str:
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
                found = with_values(whole)
                lacking = _needs(found.needs, claimed)
                kind = "not claimed" if lacking else "not run"
                yield Excluded(kind, lacking or _too_few(found.world_size, ranks), values)  # type: ignore[arg-type]


def _why(pair: Combination) -> str:
    """The reasons that leave no value of a third dimension, joined."""
    for name in VALUES:
        chosen = [{**dict(pair), name: value} for value in VALUES[name]]
        reasons = [conflict(one) or judged_apart(one) for one in chosen]
        if all(reasons) and name not in dict(pair):
            return ", and ".join(unique(reasons))
    return "together they leave no value of another dimension"
