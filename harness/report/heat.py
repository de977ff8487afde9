"""The heat map of a run: for each chapter the worst ratio to what was allowed, by dtype and number of ranks.

Two rows of one chapter, with ``ratios`` of ``{"2 ranks · float32": 0.5}`` and ``{"2 ranks · float32": 0.1, "4 ranks":
0.0}``, become::

                   float32   no dtype
    ranks          2         4
    parity         0.5       0
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.report.text import ratio_text
from harness.verdict import Record, Verdict

#: The order of columns; other dtypes follow by name, and what has none comes last.
_DTYPES = ("float64", "float32", "bfloat16", "float16")
NO_DTYPE = "no dtype"
_CELL = re.compile(r"(?P<ranks>\d+) ranks?(?: · (?P<dtype>.+))?")
#: Up to which ratio a cell is drawn how; above 1 it is too much.
_SHADES = ((0.0, "exact"), (0.1, "slight"), (0.5, "some"), (1.0, "near"))
OVER, WAIVED = "over", "waived"


@dataclass(frozen=True, order=True)
class Place:
    """A column: a dtype by its place in the order, and a number of ranks (0 where it could not be read)."""

    order: int
    dtype: str
    ranks: int
    name: str


@dataclass(frozen=True)
class Heat:
    """One cell: the worst ratio as text, how it is drawn, of which requirement it is, and where that stands."""

    text: str
    shade: str
    requirement: str
    href: str


@dataclass(frozen=True)
class HeatMap:
    """``heads`` are the dtypes with how many columns each spans; a row is a chapter and a cell a column, or None."""

    heads: tuple[tuple[str, int], ...]
    places: tuple[Place, ...]
    rows: tuple[tuple[str, tuple[Heat | None, ...]], ...]


def heat_map(records: Iterable[Record], anchors: Mapping[str, str]) -> HeatMap:
    """The map of one run. ``anchors`` says by requirement where the page tells more of it."""
    worst: dict[str, dict[Place, tuple[float, Record]]] = {}
    for record in records:
        chapter = worst.setdefault(record.chapter, {})
        for cell, ratio in record.ratios.items():
            place = place_of(cell)
            known = chapter.get(place)
            if known is None or _size(ratio) > _size(known[0]):
                chapter[place] = (ratio, record)
    places = tuple(sorted({place for chapter in worst.values() for place in chapter}))
    rows = tuple((name, _row(chapter, places, anchors)) for name, chapter in worst.items() if chapter)
    return HeatMap(_heads(places), places, rows)


def place_of(cell: str) -> Place:
    """Where the measurements of a cell belong, e.g. those of ``"2 ranks · float32"``."""
    found = _CELL.fullmatch(cell)
    if found is None:
        return Place(len(_DTYPES) + 2, cell, 0, "")
    dtype, ranks = found["dtype"] or "", int(found["ranks"][:9])
    if not dtype:
        return Place(len(_DTYPES) + 1, NO_DTYPE, ranks, str(ranks))
    order = _DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES)
    return Place(order, dtype, ranks, str(ranks))


def brief(ratio: float) -> str:
    """A ratio in a narrow column."""
    return "<.001" if 0 < ratio < 0.001 else ratio_text(float(f"{ratio:.2g}")) if ratio < 0.995 else ratio_text(ratio)


def shade_of(ratio: float, record: Record) -> str:
    """How a ratio is drawn; too much that is waived is no failure."""
    if ratio > 1 and record.verdict is Verdict.WAIVED:
        return WAIVED
    return next((shade for most, shade in _SHADES if ratio <= most), OVER)


def _row(
    chapter: Mapping[Place, tuple[float, Record]], places: Sequence[Place], anchors: Mapping[str, str]
) -> tuple[Heat | None, ...]:
    return tuple(_heat(*chapter[place], anchors) if place in chapter else None for place in places)


def _heat(ratio: float, record: Record, anchors: Mapping[str, str]) -> Heat:
    return Heat(brief(ratio), shade_of(ratio, record), record.requirement, anchors.get(record.requirement, ""))


def _heads(places: Sequence[Place]) -> tuple[tuple[str, int], ...]:
    dtypes = [place.dtype for place in places]
    return tuple((dtype, dtypes.count(dtype)) for dtype in dict.fromkeys(dtypes))


def _size(ratio: float) -> float:
    """Not a number is the worst of all."""
    return math.inf if math.isnan(ratio) else ratio
