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

from harness.data.text import ratio_text
from harness.records.record import Record
from harness.records.standing import is_waived
from harness.report.pictures.heat import place_of

#: The axis: ratios from 10 to the LOWEST to 10 to the HIGHEST, so many bars a decade; what lies beyond is at its ends.
LOWEST, HIGHEST = -5, 2
BARS = 6


@dataclass(frozen=True)
class Bar:
    """``x`` in percent of the axis, ``height`` from 0 to 1 of the largest bar of the lane, and the number behind it.

    Beyond the bound it is ``over`` if a failure is among what it counts, and ``waived`` if all of that is waived.
    """

    x: float
    height: float
    count: int
    over: bool
    waived: bool = False


@dataclass(frozen=True)
class Decade:
    """A mark of the axis: where it is, in percent, and what it stands for."""

    x: float
    name: str


@dataclass(frozen=True)
class Lane:
    """One dtype: how many measurements, how many of them equal to the last bit, the worst, and the bars of the rest.

    ``waived`` measurements are beyond their bounds and excused; the worst is that of the others, None without any.
    ``beside`` is the same of the baseline, where there is one.
    """

    dtype: str
    count: int
    exact: int
    waived: int
    worst: float | None
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
        """The worst ratio for people, and what is not counted in it."""
        said = "none" if self.worst is None else ratio_text(self.worst)
        return f"{said}; {self.waived} beyond the bound, waived" if self.waived else said


def lanes_of(records: Iterable[Record]) -> tuple[Lane, ...]:
    """A lane a dtype, from the worst ratio of each result in each of its cells."""
    found: dict[tuple[int, str], list[tuple[float, bool]]] = {}
    for record in records:
        for cell, ratio in record.ratios.items():
            place = place_of(cell)
            found.setdefault((place.order, place.dtype), []).append((ratio, is_waived(ratio, record.verdict)))
    return tuple(_lane(dtype, ratios) for (_, dtype), ratios in sorted(found.items()))


def beside(lanes: Iterable[Lane], baseline: Iterable[Lane]) -> tuple[Lane, ...]:
    """The lanes of a run, each with that of the baseline behind it."""
    known = {lane.dtype: lane for lane in baseline}
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


def _lane(dtype: str, measured: list[tuple[float, bool]]) -> Lane:
    """The lane of ratios, each with whether it is waived."""
    counts = Counter(_bar(ratio) for ratio, _ in measured if ratio > 0)
    failing = {_bar(ratio) for ratio, waived in measured if ratio > 1 and not waived}
    most = max(counts.values(), default=1)
    width = 100 / (BARS * (HIGHEST - LOWEST))
    one = BARS * -LOWEST
    bars = tuple(
        Bar(width * bar, count / most, count, bar in failing, bar >= one and bar not in failing)
        for bar, count in sorted(counts.items())
    )
    exact = sum(ratio <= 0 for ratio, _ in measured)
    counted = [ratio for ratio, waived in measured if not waived]
    return Lane(dtype, len(measured), exact, len(measured) - len(counted), max(counted, default=None), bars)


def _bar(ratio: float) -> int:
    """Which bar a ratio belongs to; exactly what is allowed belongs to the last one below it."""
    last = BARS * (HIGHEST - LOWEST) - 1
    bar = min(int(x_of(ratio) / 100 * (last + 1)), last)
    return bar - (ratio <= 1 and bar == BARS * -LOWEST)
