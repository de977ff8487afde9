"""Times of steps taken in turn, and their ratios.

Torch's steps 10, 20, 12 ms, the reference's, each beside its torch's, 6, 11, 9 ms (the machine was busy in the second
pair)::

    medians 12 and 9, ratio 0.75        pair by pair 0.6, 0.55, 0.75: median 0.6
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Compared:
    """Milliseconds of torch's steps and of the reference's, in the order in which they were taken."""

    theirs: list[float]
    ours: list[float]

    @property
    def ratio(self) -> float:
        """The median of the ratios pair by pair."""
        return statistics.median(self._ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile of the ratios pair by pair."""
        if len(self._ratios) < 2:
            return self.ratio, self.ratio
        first, _, third = statistics.quantiles(self._ratios, n=4, method="inclusive")
        return first, third

    @property
    def medians(self) -> tuple[float, float]:
        """Torch's and the reference's."""
        return statistics.median(self.theirs), statistics.median(self.ours)

    @property
    def _ratios(self) -> list[float]:
        return [ours / theirs for theirs, ours in zip(self.theirs, self.ours, strict=True)]


@dataclass(frozen=True)
class Pairs:
    """Whole steps, their forward and backward alone, and the milliseconds of their collectives alone, if measured."""

    step: Compared
    passes: Compared
    wire: float | None

    @property
    def share_of_wire(self) -> float:
        """What part of the reference's median step its collectives take alone."""
        assert self.wire is not None
        return self.wire / self.step.medians[1]

    @property
    def words(self) -> str:
        """The last cells of the row."""
        theirs, ours = self.step.medians
        first, third = self.step.quartiles
        ratios = f"{ours / theirs:.2f} | {self.step.ratio:.2f} ({first:.2f}–{third:.2f}) | {self.passes.ratio:.2f}"
        return f"{theirs:.1f} | {ours:.1f} | {ratios} | {self._beside_the_wire}"

    @property
    def _beside_the_wire(self) -> str:
        if self.wire is None:
            return "– | –"
        theirs, ours = (median - self.wire for median in self.step.medians)
        return f"{self.wire:.1f} | {ours / theirs:.2f}" if theirs > 0 else f"{self.wire:.1f} | –"


def pairs_of(ranks: Sequence[dict[str, Any]], *, same: bool) -> Pairs:
    """From what ``take_turns`` returned on each rank; with ``same`` the subjects must have trained to the same loss."""
    for found in ranks:
        losses = found["losses"]
        assert not same or math.isclose(*losses, rel_tol=0.02), f"the subjects do not train alike: losses {losses}"
    theirs, ours, *wire = (_steps(ranks, place, until=2) for place in range(len(ranks[0]["moments"])))
    passes = Compared(*(_steps(ranks, place, until=1) for place in (0, 1)))
    return Pairs(Compared(theirs, ours), passes, statistics.median(wire[0]) if wire else None)


def _steps(ranks: Sequence[dict[str, Any]], place: int, until: int) -> list[float]:
    """Milliseconds from when the first rank starts until the last has come to moment ``until``."""
    steps = zip(*(found["moments"][place] for found in ranks), strict=True)
    return [1000 * (max(one[until] for one in step) - min(one[0] for one in step)) for step in steps]
