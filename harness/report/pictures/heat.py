"""The heat map of a run: for each chapter the worst difference against its bound, by dtype, ranks and mesh.

Two of a chapter, with ``ratios`` of ``{"2 ranks · float32": 0.375}`` and ``{"2 ranks · float32": 0.1, "4 ranks ·
mesh 2x2": 0.0}``, and ``ulps`` of ``{"2 ranks · float32": [3, 8]}`` for the first, become::

                   float32   no dtype
    ranks          2         4
    mesh           –         2×2
    parity         3/8       0

3/8 is 3 units in the last place off where 8 are allowed. What no such unit measures is a plain number: off ÷ allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.data.text import plural, ratio_text
from harness.records.record import Record
from harness.records.standing import is_waived, severity

#: The order of columns; other dtypes follow by name, and what has none comes last.
_DTYPES = ("float64", "float32", "bfloat16", "float16")
NO_DTYPE = "no dtype"
_CELL = re.compile(r"(?P<ranks>\d+) ranks?(?: · (?!mesh )(?P<dtype>.+?))?(?: · mesh (?P<mesh>[\dx]{1,20}))?")
#: Up to which ratio a cell is drawn how; above 1 it is too much.
_SHADES = ((0.0, "exact"), (0.1, "slight"), (0.5, "some"), (1.0, "near"))
OVER, WAIVED = "over", "waived"
#: How many columns are drawn: columns and chapters multiply, and a file of strangers may name any number of both.
MOST_PLACES = 120
#: What each way of drawing means.
KEY = (
    ("exact", "equal to the last bit"),
    ("slight", "up to 10 % of the bound"),
    ("some", "up to half"),
    ("near", "up to all of it"),
    (OVER, "too much"),
    (WAIVED, "too much, waived"),
)


@dataclass(frozen=True, order=True)
class HeatColumn:
    """A column: a dtype by its place in the order, a number of ranks (0 where it could not be read), and a mesh."""

    order: int
    dtype: str
    ranks: int
    name: str
    mesh: str = ""


@dataclass(frozen=True)
class Heat:
    """One cell: the worst as text and in words, how it is drawn, of which requirement it is, and where that stands."""

    text: str
    said: str
    shade: str
    requirement: str
    href: str


@dataclass(frozen=True)
class HeatMap:
    """A row is a chapter and a cell a column, or None.

    ``heads`` are the dtypes with how many columns each spans, ``sizes`` the numbers of ranks alike. ``has_mesh`` is
    whether columns differ by mesh, ``has_ulps`` whether cells say units in the last place; ``left_out`` columns are
    not drawn.
    """

    heads: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[str, int], ...]
    places: tuple[HeatColumn, ...]
    rows: tuple[tuple[str, tuple[Heat | None, ...]], ...]
    has_mesh: bool
    has_ulps: bool
    left_out: int


def heat_map(records: Iterable[Record], anchors: Mapping[str, str]) -> HeatMap:
    """The map of one run. ``anchors`` says by requirement where the page tells more of it."""
    worst: dict[str, dict[HeatColumn, tuple[float, str, Record]]] = {}
    for record in records:
        chapter = worst.setdefault(record.chapter, {})
        for cell, ratio in record.ratios.items():
            place = place_of(cell)
            known = chapter.get(place)
            if known is None or severity(ratio, record.verdict) > severity(known[0], known[2].verdict):
                chapter[place] = (ratio, cell, record)
    every = sorted({place for chapter in worst.values() for place in chapter})
    places = tuple(every[:MOST_PLACES])
    rows = tuple((name, _row(chapter, places, anchors)) for name, chapter in worst.items() if chapter)
    return HeatMap(
        heads=_spans([(place.dtype,) for place in places]),
        sizes=_spans([(place.name, place.dtype) for place in places]),
        places=places,
        rows=rows,
        has_mesh=any(place.mesh for place in places),
        has_ulps=any("/" in cell.text for _, cells in rows for cell in cells if cell),
        left_out=len(every) - len(places),
    )


def place_of(cell: str) -> HeatColumn:
    """Where the measurements of a cell belong, e.g. those of ``"2 ranks · float32"``."""
    found = _CELL.fullmatch(cell)
    if found is None:
        return HeatColumn(len(_DTYPES) + 2, cell, 0, "")
    dtype, ranks, mesh = found["dtype"] or "", int(found["ranks"][:9]), (found["mesh"] or "").replace("x", "×")
    if not dtype:
        return HeatColumn(len(_DTYPES) + 1, NO_DTYPE, ranks, str(ranks), mesh)
    order = _DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES)
    return HeatColumn(order, dtype, ranks, str(ranks), mesh)


def brief(ratio: float) -> str:
    """A ratio in a narrow column."""
    return "<.001" if 0 < ratio < 0.001 else ratio_text(float(f"{ratio:.2g}")) if ratio < 0.995 else ratio_text(ratio)


def units(ulps: Sequence[float]) -> str:
    """``[3.0, 8.0]`` as ``3/8``; empty for what is no pair of numbers."""
    if len(ulps) != 2 or not all(math.isfinite(size) and 0 <= size < 1e300 for size in ulps):
        return ""
    return "/".join(map(_short, ulps))


def shade_of(ratio: float, record: Record) -> str:
    """How a ratio is drawn; too much that is waived is no failure."""
    if is_waived(ratio, record.verdict):
        return WAIVED
    return next((shade for most, shade in _SHADES if ratio <= most), OVER)


def _row(
    chapter: Mapping[HeatColumn, tuple[float, str, Record]], places: Sequence[HeatColumn], anchors: Mapping[str, str]
) -> tuple[Heat | None, ...]:
    return tuple(_heat(*chapter[place], place, anchors) if place in chapter else None for place in places)


def _heat(ratio: float, cell: str, record: Record, place: HeatColumn, anchors: Mapping[str, str]) -> Heat:
    ulps = units(record.ulps.get(cell, ())) if ratio > 0 else ""
    where = [plural(place.ranks, "rank") if place.ranks else place.dtype, f"mesh {place.mesh}" if place.mesh else ""]
    many = f"{ulps.replace('/', ' ULP off of ')} allowed, " if ulps else ""
    said = f"{record.requirement}, {', '.join(filter(None, where))}: {many}worst ÷ allowed {ratio_text(ratio)}"
    said += ", waived" if is_waived(ratio, record.verdict) else ""
    href = anchors.get(record.requirement, "")
    return Heat(ulps or brief(ratio), said, shade_of(ratio, record), record.requirement, href)


def _short(size: float) -> str:
    """A number of units in few characters."""
    if size >= 9999.5:
        return f"{size:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{size:.0f}" if size >= 9.95 or size == round(size) else f"{size:.1g}" if size < 0.95 else f"{size:.1f}"


def _spans(names: Sequence[tuple[str, ...]]) -> tuple[tuple[str, int], ...]:
    """Neighbours of one name, as the name and how many they are."""
    return tuple((name[0], len(list(same))) for name, same in groupby(names))
