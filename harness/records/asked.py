"""What cases that fail ask for, and hardly any that passes: what to fix, or not to claim.

Of an implementation that refuses rows which ranks do not divide, 140 cases of 46 results fail::

    uneven rows      140 of 140 that fail      2 of 310 that pass      distinctive
    fully_shard      140 of 140              310 of 310
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.data.text import one_line, plural
from harness.records.record import Record
from harness.vendor.features import Feature

#: At least this share of the cases that fail ask for it, and at most that of those that pass.
_MOST, _FEW = 0.9, 0.1
#: How many features are looked at.
_MOST_FEATURES = 100


@dataclass(frozen=True)
class Distinctive:
    """A feature, the cases that ask for it and all cases: of those that fail, and of those that pass."""

    feature: str
    failing: int
    all_failing: int
    passing: int
    all_passing: int

    def __str__(self) -> str:
        came = f"{self.failing} of {plural(self.all_failing, 'case')} that fail"
        return f"{came} ask for {one_line(self.feature, 80)}, {self.passing or 'none'} of {self.all_passing} that pass"


def distinctive(failing: Sequence[Record], records: Iterable[Record]) -> list[Distinctive]:
    """Features that tell failing results of a run from what passes in it; what fewest passing cases ask for first."""
    ends = Counter[tuple[str, str]]()
    for record in failing:
        ends.update(_ends(record))
    failed = set(map(id, failing))
    for record in records:
        if record.passed and id(record) not in failed:
            ends.update(_ends(record))
    names = sorted({name for name, end in ends if end == "fail"} - {"", Feature.FULLY_SHARD})[:_MOST_FEATURES]
    all_failing, all_passing = ends["", "fail"], ends["", "pass"]
    found = [Distinctive(name, ends[name, "fail"], all_failing, ends[name, "pass"], all_passing) for name in names]
    told = [
        one for one in found if one.failing >= _MOST * all_failing and one.passing <= _FEW * all_passing and all_passing
    ]
    return sorted(told, key=lambda one: (one.passing, -one.failing, one.feature))


def _ends(record: Record) -> Mapping[tuple[str, str], int]:
    """How many cases of a result asked for each feature, those that it needs included, and how they ended."""
    asked = record.asked or {"": {"fail" if record.failed else "pass": 1}}
    every = asked.get("", {})
    return dict(_counts({**asked, **dict.fromkeys(record.features[:_MOST_FEATURES], every)}))


def _counts(asked: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[tuple[str, str], int]]:
    for name, ends in asked.items():
        yield from (((name, end), count) for end, count in ends.items())
