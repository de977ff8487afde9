"""What cases that fail ask for, and hardly any that passes: what to fix, or not to claim.

Of an implementation that refuses rows which ranks do not divide, 140 cases of 46 results fail::

    uneven rows      140 of 140 that fail      2 of 310 that pass      distinctive
    fully_shard      140 of 140              310 of 310
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from harness.data.text import one_line, plural
from harness.records.record import Record
from harness.vendor.features import Feature

#: At least this share of the cases that fail ask for it, and at most that of those that pass.
_MOST, _FEW = 0.9, 0.1
#: How many features are looked at.
_MOST_FEATURES = 100


#: How many cases asked for a feature, or under "" all of them, and ended so.
Ends: TypeAlias = "Counter[tuple[str, str]]"


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
        asked = f"ask for {one_line(self.feature, 80)}, {self.passing or 'none'} of {self.all_passing} that pass"
        return f"{came} {asked}: make it right, or do not claim it"


def passing_ends(records: Iterable[Record]) -> Ends:
    """How many cases of the results that pass in a run asked for each feature; once for all that fail there."""
    return _counted(record for record in records if record.passed)


def distinctive(failing: Iterable[Record], passing: Ends) -> list[Distinctive]:
    """Features that tell failing results from what passes in their run; what fewest passing cases ask for first."""
    # A result with a stale waiver may have passed, and is counted already.
    ends = passing + _counted(record for record in failing if not record.passed)
    names = sorted({name for name, end in ends if end == "fail"} - {"", Feature.FULLY_SHARD})[:_MOST_FEATURES]
    all_failing, all_passing = ends["", "fail"], ends["", "pass"]
    found = [Distinctive(name, ends[name, "fail"], all_failing, ends[name, "pass"], all_passing) for name in names]
    told = [
        one for one in found if one.failing >= _MOST * all_failing and one.passing <= _FEW * all_passing and all_passing
    ]
    return sorted(told, key=lambda one: (one.passing, -one.failing, one.feature))


def _counted(records: Iterable[Record]) -> Ends:
    """All cases of a result ask for what it needs."""
    found: Ends = Counter()
    for record in records:
        asked = record.asked or {"": {"fail" if record.failed else "pass": 1}}
        needed = dict.fromkeys(record.features[:_MOST_FEATURES], asked.get("", {}))
        for name, ends in {**asked, **needed}.items():
            found.update({(name, end): count for end, count in ends.items()})
    return found
