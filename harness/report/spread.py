"""How far measurements were from what was allowed, by dtype: on a log axis, so that drift shows before it fails.

Ratios 0, 0, 0.01 and 0.5 in float32 are one lane: half of them equal to the last bit, and a bar each at 0.01 and 0.5::

    float32   50 % exact   ┝╷━━━━━━╷━━━╷━╷│
                           1e-4  0.01     1 = what is allowed
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.report.heat import place_of
from harness.report.text import ratio_text
from harness.verdict import Record

#: The axis: ratios from 10 to the LOWEST to 10 to the HIGHEST, so many bars a decade; what lies beyond is at its ends.
LOWEST, HIGHEST = -5, 2
BARS = 6


@dataclass(frozen=True)
class Bar:
    """``x`` in percent of the axis, ``height`` from 0 to 1 of the largest bar of the lane, and the number behind it."""

    x: float
    height: float
    count: int
    over: bool


@dataclass(frozen=True)
class Decade:
    """A mark of the axis: where it is, in percent, and what it stands for."""

    x: float
    name: str


@dataclass(frozen=True)
class Lane:
    """One dtype: how many measurements, how many of them equal to the last bit, the worst, and the bars of the rest.

    ``beside`` is the same of the reference side, where there is one.
    """

    dtype: str
    count: int
    exact: int
    worst: float
    bars: tuple[Bar, ...]
    beside: Lane | None = None

    @property
    def share(self) -> str:
        """The exact ones in words; never all or none unless it is so."""
        percent = 100 * self.exact / self.count
        if 99.5 <= percent < 100:
            return "over 99 %"
        return "under 1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"

    @property
    def worst_text(self) -> str:
        """The worst ratio for people."""
        return ratio_text(self.worst)


def lanes_of(records: Iterable[Record]) -> tuple[Lane, ...]:
    """A lane a dtype, from the worst ratio of each row in each of its cells."""
    found: dict[tuple[int, str], list[float]] = {}
    for record in records:
        for cell, ratio in record.ratios.items():
            place = place_of(cell)
            found.setdefault((place.order, place.dtype), []).append(math.inf if math.isnan(ratio) else ratio)
    return tuple(_lane(dtype, ratios) for (_, dtype), ratios in sorted(found.items()))


def beside(lanes: Iterable[Lane], reference: Iterable[Lane]) -> tuple[Lane, ...]:
    """The lanes of a run, each with that of the reference side behind it."""
    known = {lane.dtype: lane for lane in reference}
    return tuple(replace(lane, beside=known.get(lane.dtype)) for lane in lanes)


def x_of(ratio: float) -> float:
    """Where a ratio above 0 lies on the axis, in percent."""
    decades = math.log10(ratio) if 0 < ratio < math.inf else HIGHEST
    return 100 * (min(max(decades, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)


def axis() -> tuple[Decade, ...]:
    """The marks of the axis, a decade apart; its ends stand for all that lies beyond."""
    names = {LOWEST: f"≤ 1e{LOWEST}", 0: "1", HIGHEST: f"≥ {10**HIGHEST}"}
    return tuple(
        Decade(x_of(10.0**power), names.get(power, f"{10.0**power:g}")) for power in range(LOWEST, HIGHEST + 1)
    )


def _lane(dtype: str, ratios: list[float]) -> Lane:
    counts = Counter(_bar(ratio) for ratio in ratios if ratio > 0)
    most = max(counts.values(), default=1)
    width = 100 / (BARS * (HIGHEST - LOWEST))
    one = BARS * -LOWEST
    bars = tuple(Bar(width * bar, count / most, count, bar >= one) for bar, count in sorted(counts.items()))
    return Lane(dtype, len(ratios), sum(ratio <= 0 for ratio in ratios), max(ratios), bars)


def _bar(ratio: float) -> int:
    """Which bar a ratio belongs to; exactly what is allowed belongs to the last one below it."""
    last = BARS * (HIGHEST - LOWEST) - 1
    bar = min(int(x_of(ratio) / 100 * (last + 1)), last)
    return bar - (ratio <= 1 and bar == BARS * -LOWEST)
