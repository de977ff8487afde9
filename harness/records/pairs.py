"""What the results of a run say of every two values that their combinations have: whether they work together.

Results tried ``net=tied, mesh=2`` and ``net=linear, mesh=4``, which passed, and left out ``mesh=3`` as not claimed::

                  mesh=2        mesh=3        mesh=4
    net=linear    not tried     not claimed   passed once
    net=tied      passed once   not claimed   not tried

Two values fail if they have a cause of failure between them, or are a part of one, and a combination of both failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from harness.data.kinds import StringEnum
from harness.data.text import one_line, unique
from harness.records.causes import SharedCause, shared_causes
from harness.records.record import Combinations, Exclusion, Record, Verdict
from harness.records.standing import worst_of

#: How many dimensions, values in all, combinations and exclusions of a run are looked at, and causes of one failure:
#: a few times what ours has.
MOST_DIMENSIONS, MOST_VALUES, MOST_COMBINATIONS, MOST_EXCLUSIONS, MOST_CAUSES = 24, 200, 2000, 300, 8

#: A dimension, and a value of it.
Value = tuple[str, str]


class End(StringEnum):
    """What became of two values together, worst first."""

    FAIL = "fail"
    WAIVED = "waived"
    UNCLEAR = "unclear"
    NOT_TRIED = "not tried"
    NOT_RUN = "not run"
    NOT_CLAIMED = "not claimed"
    IMPOSSIBLE = "impossible"
    PASS = "pass"


@dataclass(frozen=True)
class Together:
    """Two values: how often they passed together, why that is not all, and the result that says so.

    ``which`` are the values that were left out for this reason, if they were.
    """

    end: End
    passes: int = 0
    why: str = ""
    which: str = ""
    record: Record | None = None


_APART = {Verdict.PASS: End.PASS, Verdict.FAIL: End.FAIL, Verdict.STALE_WAIVER: End.FAIL, Verdict.WAIVED: End.WAIVED}
_APART |= {Verdict.NOT_CLAIMED: End.NOT_CLAIMED}
_ENDS = {"impossible": End.IMPOSSIBLE, "not claimed": End.NOT_CLAIMED}


@dataclass(frozen=True)
class _LeftOut:
    """An exclusion: values by dimension, whether another requirement judges them, and what is said of them."""

    values: Mapping[str, frozenset[str]]
    is_apart: bool
    told: Together


class Pairs:
    """Of one run. ``dimensions`` has the values of each; ``left_out`` is how many combinations were not looked at."""

    def __init__(self, records: Sequence[Record]) -> None:
        told = [record for record in records if record.combinations.get("tried")]
        self.dimensions = _dimensions(told)
        self.causes = [cause for cause in shared_causes(records) if not cause.is_error]
        self._by_requirement: dict[str, list[Record]] = {}
        for record in records:
            self._by_requirement.setdefault(record.requirement, []).append(record)
        self._excluded = _by_dimensions(told)
        self._passes: Counter[tuple[Value, Value]] = Counter()
        self._failing: dict[tuple[Value, Value], Together] = {}
        self._hidden: dict[tuple[Value, Value], Record] = {}
        self._ended: dict[tuple[Value, Value], Record] = {}
        every = ((record, *one) for record in told for one in _decoded(record.combinations))
        for record, values, end in islice(every, MOST_COMBINATIONS):
            self._take(record, [(name, values[name]) for name in self.dimensions if name in values], end)
        self.left_out = max(0, sum(len(record.combinations.get("tried", [])) for record in told) - MOST_COMBINATIONS)

    def _take(self, record: Record, values: Sequence[Value], end: str) -> None:
        pairs = [*((one, one) for one in values), *combinations(values, 2)]
        if end == "P":
            self._passes.update(pairs)
            return
        whole = set(values)
        within = list(islice((cause for cause in self.causes if cause.values <= whole), MOST_CAUSES))
        for pair in pairs:
            cause = next((cause for cause in within if _is_about(cause, pair)), None)
            if cause is not None and record.failed:
                self._fail(pair, cause, record)
            elif within or end == "F":
                self._hidden.setdefault(pair, record)
            else:
                self._ended.setdefault(pair, record)

    def _fail(self, pair: tuple[Value, Value], cause: SharedCause, record: Record) -> None:
        end = End.WAIVED if record.verdict is Verdict.WAIVED else End.FAIL
        if pair not in self._failing or (end is End.FAIL and self._failing[pair].end is End.WAIVED):
            self._failing[pair] = Together(end, why=cause.words, record=record)

    def of(self, one: Value, other: Value) -> Together:
        """What became of two values of different dimensions, the first dimension first; or of one, given twice."""
        pair, found = (one, other), list(self._exclusions(one, other))
        passes = self._passes[pair]
        if failing := self._failing.get(pair):
            return Together(failing.end, passes, failing.why, record=failing.record)
        if found and all(left.is_apart for left in found):
            return self._apart(found[0].told.why, passes)
        if passes:
            return Together(End.PASS, passes)
        if record := self._hidden.get(pair):
            return Together(End.UNCLEAR, why=f"only where {_name(record)} fails for another cause", record=record)
        if found:
            return max((left.told for left in found if not left.is_apart), key=lambda told: _ORDER.index(told.end))
        if record := self._ended.get(pair):
            return Together(End.NOT_RUN, why=f"planned in {_name(record)}, which ended before", record=record)
        return Together(End.NOT_TRIED, why="no result of this run tries it")

    def _exclusions(self, one: Value, other: Value) -> Iterator[_LeftOut]:
        chosen = dict((one, other))
        for names in {frozenset([one[0]]), frozenset([other[0]]), frozenset(chosen)}:
            for left in self._excluded.get(names, ()):
                if all(chosen[name] in values for name, values in left.values.items()):
                    yield left

    def _apart(self, requirement: str, passes: int) -> Together:
        """What the requirement came to that is about such values."""
        records = self._by_requirement.get(requirement, [])
        if not records:
            return Together(End.NOT_RUN, passes, f"judged by {requirement}, which has no result here")
        verdict = worst_of(record.verdict for record in records)
        record = next(one for one in records if one.verdict is verdict)
        end = _APART.get(verdict, End.NOT_RUN)
        more = "" if str(end) == str(verdict) else f", which is {verdict}"
        return Together(end, passes, f"judged by {requirement}{more}", record=record)


_ORDER = tuple(End)


def _name(record: Record) -> str:
    return f"{record.requirement} in {record.world}"


def _is_about(cause: SharedCause, pair: tuple[Value, Value]) -> bool:
    """Whether these values fail by themselves, or two of them fail with others; one alone may pass without those."""
    return cause.values <= set(pair) or (pair[0] != pair[1] and set(pair) <= cause.values)


def _dimensions(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """The values of each dimension that any result has, as many as are looked at."""
    found: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for record in records:
        named = record.combinations.get("dimensions", {})
        if (text := repr(named)) in seen:
            continue
        seen.add(text)
        for name, values in islice(named.items(), MOST_DIMENSIONS):
            if name in found or len(found) < MOST_DIMENSIONS:
                room = MOST_VALUES - sum(map(len, found.values()))
                found[name] = unique([*found.get(name, ()), *values])[: len(found.get(name, ())) + room]
    return {name: values for name, values in found.items() if values}


def _by_dimensions(records: Iterable[Record]) -> Mapping[frozenset[str], list[_LeftOut]]:
    """What is left out, once each, by the dimensions that it names."""
    found: dict[str, Exclusion] = {}
    for record in records:
        for exclusion in record.combinations.get("excluded", []):
            if len(found) < MOST_EXCLUSIONS and 0 < len(exclusion.get("values", {})) <= 2:
                found.setdefault(repr(exclusion), exclusion)
    ordered: dict[frozenset[str], list[_LeftOut]] = {}
    for exclusion in found.values():
        ordered.setdefault(frozenset(exclusion.get("values", {})), []).append(_left_out(exclusion))
    return ordered


def _left_out(exclusion: Exclusion) -> _LeftOut:
    kind, why, values = exclusion.get("kind", ""), exclusion.get("why", ""), exclusion.get("values", {})
    which = one_line(" with ".join(f"{name}={' or '.join(some)}" for name, some in values.items()))
    told = Together(_ENDS.get(kind, End.NOT_RUN), why=why, which=which)
    return _LeftOut({name: frozenset(some) for name, some in values.items()}, kind == "apart", told)


def _decoded(told: Combinations) -> Iterator[tuple[dict[str, str], str]]:
    """Each combination as the values that it has of dimensions, with the letter of its end."""
    dimensions = list(told.get("dimensions", {}).items())[:MOST_DIMENSIONS]
    for places, end in zip(told.get("tried", []), told.get("ends", ""), strict=False):
        chosen = zip(dimensions, places, strict=False)
        yield {name: values[place] for (name, values), place in chosen if 0 <= place < len(values)}, end
