"""What a trial knows of its test: examples, checks, and how far results were from what was expected, for the record.

After ``begin(case, 2)`` and ``compare("rank 0", [1.25], [1.0], absolute(0.5))``, for a case of two ranks in float32::

    as_record(failed=False) ─▶   {"checks": 1, "examples": 1, "ratio": 0.5, "ratios": {"2 ranks · float32": 0.5}, …}
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from harness.data.case import Case, cell_of
from harness.data.comparison import UNBOUNDED, Allowance, Difference, difference
from harness.data.loss_curves import MOST_CURVES, Curve, curves_of
from harness.data.nearest import nearest
from harness.data.tensors import Compared, first_that_differ
from harness.trial.combinations import Combinations
from harness.worlds.base import SubjectFailure

#: How many failed comparisons are kept of one case.
_MOST_DIFFERENCES = 32


@dataclass
class Facts:
    """``differences`` (each with whose it is), ``compared`` and ``curves`` are of the current ``case``.

    ``passed`` are the cases of examples that passed. ``asked`` counts examples by the features that they asked for, and
    all of them under "", by how they ended; ``features`` are those of the current example.
    ``misfit`` is the fewest ranks that a case needed of those left out because the world has too few; 0: none.
    ``unclaimed`` counts by feature the cases left out because they ask for one that is not claimed.
    """

    checks: int = 0
    examples: int = 0
    world_sizes: set[int] = field(default_factory=set)
    misfit: int = 0
    unclaimed: Counter[str] = field(default_factory=Counter)
    case: Any = None
    worst: Difference = field(default_factory=Difference)
    ratios: dict[str, float] = field(default_factory=dict)
    ulps: dict[str, list[float]] = field(default_factory=dict)
    differences: list[tuple[str, Difference]] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    passed: list[Case] = field(default_factory=list)
    asked: dict[str, Counter[str]] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)
    combinations: Combinations = field(default_factory=Combinations)
    _is_new: bool = True

    def begin_example(self) -> None:
        """The next program is of another example, also if its case is the same."""
        self._is_new = True

    def begin(self, case: Any, size: int) -> None:
        """A program is about to run on ``size`` ranks; the same case again is the same example."""
        if self._is_new or case != self.case:  # not "is not": an oracle may have kept an equal one of another test
            self.examples += 1
            self.differences, self.compared, self.curves, self.features = [], [], [], set()
        self._is_new, self.case = False, case
        self.world_sizes.add(size)

    @contextmanager
    def noting_the_end(self) -> Iterator[None]:
        """Around an example: keep how it ends."""
        try:
            yield
        except SubjectFailure:
            self._note("fail")
            raise
        self._note("pass")
        if isinstance(self.case, Case):
            self.passed.append(self.case)

    def _note(self, end: str) -> None:
        for feature in ("", *sorted(self.features)):
            self.asked.setdefault(feature, Counter())[end] += 1

    def compare(self, where: str, got: Any, want: Any, within: Allowance) -> Difference:
        """The worst difference between two trees, counted and measured."""
        found = difference(got, want, within)
        self.checks += found.leaves
        self._measure(found)
        self.compared.append((where, got, want, within))
        if len(self.curves) < MOST_CURVES:
            self.curves += curves_of(where, got, want)
        if found.ratio >= self.worst.ratio:
            self.worst = replace(found, path=f"{where}: {found.path}")
        if found.too_much and len(self.differences) < _MOST_DIFFERENCES:
            self.differences.append((where, found))
        return found

    def _measure(self, found: Difference) -> None:
        """Keep the worst ratio, and its size in units in the last place, by what the case was about."""
        cell = cell_of(self.case) if self.case is not None else ""
        if found.ratio > self.ratios.setdefault(cell, 0.0):
            self.ratios[cell] = found.ratio
            self.ulps.pop(cell, None)
            ulps = [found.off / found.ulp, found.allowed / found.ulp] if found.ulp else []
            if ulps and all(map(math.isfinite, ulps)):  # a float64 far off at 1e-300 has more units than a float holds
                self.ulps[cell] = ulps

    def as_record(self, failed: bool) -> dict[str, Any]:
        """The fields of a record; of a test that failed, also its case and what differed."""
        measured = {
            "ratio": self.worst.ratio if self.ratios else None,
            "worst": self.worst.words() if self.worst.ratio > 0 else self.worst.path,
            "ratios": self.ratios,
            "ulps": self.ulps,
            "curves": self.curves,
            "combinations": self.combinations.as_json(),
            "checks": self.checks,
            "examples": self.examples,
            "asked": self.asked,
            "world_sizes": sorted(self.world_sizes),
        }
        if not failed:
            return measured
        case = self.case.as_json() if isinstance(self.case, Case) else None
        return measured | {
            "case": case,
            "differences": [_as_json(where, found) for where, found in self.differences],
            "tensors": first_that_differ(self.compared),
            "near": nearest(case, (one.as_json() for one in self.passed)) if case else None,
        }


def _as_json(where: str, found: Difference) -> dict[str, Any]:
    """A failed comparison as JSON, which has no infinity."""
    words = {"where": where, "path": found.path, "got": found.got, "want": found.want, "ulp": found.ulp or None}
    sizes = {"off": found.off, "allowed": found.allowed, "ratio": found.ratio}
    return words | {name: size if size < UNBOUNDED else None for name, size in sizes.items()}
