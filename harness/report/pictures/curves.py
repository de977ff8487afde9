"""Losses by step of failing results: the unsharded model's as a broad line, and over it what a rank came to.

One record of two steps, ``{"name": "loss, rank 1", "baseline": [4.0, 3.0], "ranks": {"rank 1": [4.0, 3.5]}}``, is one
chart with two lines that part at the second step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.data.text import one_line
from harness.records.record import LossCurve, Record

#: How many charts a page has; how many of one result; how many lines and steps a chart has.
MOST_CHARTS, MOST_OF_A_ROW, MOST_LINES, MOST_STEPS = 12, 2, 8, 64
#: The drawing: its size, what is left free around lines, and the room for the axes' numbers at the left and below.
WIDTH, HEIGHT, MARGIN, LEFT, BELOW = 240.0, 110.0, 6.0, 46.0, 14.0

_Points = tuple[tuple[float, float], ...]
Losses = list[float | None]


@dataclass(frozen=True)
class CurveLine:
    """One curve: ``strokes`` of points that follow each other without a gap, each as ``"x,y x,y"``, and its points."""

    strokes: tuple[str, ...]
    points: _Points


@dataclass(frozen=True)
class Chart:
    """One small chart: of which result, what it shows, the two kinds of lines, and the same in words."""

    requirement: str
    world: str
    name: str
    baseline: CurveLine
    ranks: tuple[CurveLine, ...]
    low: str
    high: str
    steps: int
    said: str


def charts_of(records: Iterable[Record]) -> tuple[Chart, ...]:
    """A few charts of a run: of results that fail."""
    charts = (chart for record in records if record.verdict.is_red for chart in _charts_of_row(record))
    return tuple(chart for chart, _ in zip(charts, range(MOST_CHARTS), strict=False))


def _charts_of_row(record: Record) -> Iterator[Chart]:
    for curve in record.curves[:MOST_OF_A_ROW]:
        chart = _chart(record, curve)
        if chart is not None:
            yield chart


def _chart(record: Record, curve: LossCurve) -> Chart | None:
    baseline = _losses(curve.get("baseline", []))
    named = {one_line(name, 40): _losses(own) for name, own in curve.get("ranks", {}).items()}
    lines = dict(list(named.items())[:MOST_LINES])
    known = [loss for losses in (baseline, *lines.values()) for loss in losses if loss is not None]
    steps = max([len(baseline), *map(len, lines.values())])
    if not known or not lines:
        return None
    low, high = min(known), max(known)
    return Chart(
        requirement=record.requirement,
        world=record.world,
        name=one_line(curve.get("name", ""), 80),
        baseline=_line(baseline, steps, low, high),
        ranks=tuple(_line(losses, steps, low, high) for losses in lines.values()),
        low=f"{low:.3g}",
        high=f"{high:.3g}",
        steps=steps,
        said=_said(baseline, lines, steps),
    )


def _losses(losses: Losses) -> Losses:
    """Numbers that can be drawn; None for what is not one."""
    return [loss if loss is not None and abs(loss) < 1e150 else None for loss in losses[:MOST_STEPS]]


def _line(losses: Losses, steps: int, low: float, high: float) -> CurveLine:
    across, up = WIDTH - LEFT - 2 * MARGIN, HEIGHT - BELOW - 2 * MARGIN
    strokes: list[list[tuple[float, float]]] = [[]]
    for step, loss in enumerate(losses):
        if loss is None:
            strokes.append([])
            continue
        x = LEFT + MARGIN + across * (step / (steps - 1) if steps > 1 else 0.5)
        y = MARGIN + up * ((high - loss) / (high - low) if high > low else 0.5)
        strokes[-1].append((round(x, 1), round(y, 1)))
    kept = [stroke for stroke in strokes if stroke]
    return CurveLine(
        tuple(" ".join(f"{x},{y}" for x, y in stroke) for stroke in kept),
        tuple(point for stroke in kept for point in stroke),
    )


def _said(baseline: Losses, lines: dict[str, Losses], steps: int) -> str:
    """Where it is farthest from the baseline, in a sentence."""
    gaps = [
        (abs(own - base), step, name, own, base)
        for name, losses in lines.items()
        for step, (own, base) in enumerate(zip(losses, baseline, strict=False))
        if own is not None and base is not None
    ]
    lost = sum(loss is None for losses in lines.values() for loss in losses)
    unknown = f"; {lost} not finite" if lost else ""
    worst = max(gaps, default=None)
    if worst is None:
        return f"{steps} steps, none to be compared{unknown}"
    gap, step, name, own, base = worst
    if gap == 0:
        return f"{steps} steps, all {'finite ones ' if lost else ''}equal to the unsharded model's{unknown}"
    return f"{steps} steps; at most {gap:.2g} apart, at step {step} on {name}: {own:.6g}, expected {base:.6g}{unknown}"
