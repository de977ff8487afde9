"""What devices ran in a failing case, as lanes by stream beside each other, in time.

the default stream of device 0               ████ mm      ████ mm
the stream of process group 0 of device 0           ████ all_gather
                                             0             20 µs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.data.text import one_line, plural, unique
from harness.records.record import Span
from harness.report.pictures.events import letter_of

#: How many lanes, and how many launches altogether, are drawn.
MOST_LANES, MOST_BARS = 24, 1200


@dataclass(frozen=True)
class Bar:
    """A launch: where it begins and how long it is, in percent of the picture's width, and its words."""

    left: float
    width: float
    kind: str
    words: str


@dataclass(frozen=True)
class StreamLane:
    """What one stream ran."""

    name: str
    bars: tuple[Bar, ...]

    @property
    def text(self) -> str:
        """The same, a line each."""
        return "\n".join(bar.words for bar in self.bars)


@dataclass(frozen=True)
class Timeline:
    """The picture. ``microseconds`` is its width, ``left_out`` what is not drawn."""

    lanes: tuple[StreamLane, ...]
    microseconds: float
    left_out: str

    @property
    def text(self) -> str:
        """All lanes as text, one after the other."""
        return "\n\n".join(f"{lane.name}\n{lane.text}" for lane in self.lanes)


def timeline_of(spans: Sequence[Span]) -> Timeline | None:
    """The timeline of a result; None if it has no launches."""
    drawn = [(str(s.get("stream", "")), s, *_times(s)) for s in spans[:MOST_BARS]]
    if not drawn:
        return None
    begin = min(found[2] for found in drawn)
    width = max(max(found[3] for found in drawn) - begin, 1e-9)
    names = unique(found[0] for found in drawn)
    lanes = tuple(
        StreamLane(one_line(name, 60), tuple(_bar(*found[1:], begin, width) for found in drawn if found[0] == name))
        for name in names[:MOST_LANES]
    )
    more = len(spans) - len(drawn)
    return Timeline(lanes, width, f"{plural(more, 'kernel')} not drawn" if more > 0 else "")


def _times(span: Span) -> tuple[float, float]:
    begin, end = span.get("begin", 0.0), span.get("end", 0.0)
    return begin, max(begin, end)


def _bar(span: Span, begin: float, end: float, origin: float, width: float) -> Bar:
    name = one_line(str(span.get("name", "")), 60)
    words = f"{begin - origin:.1f} to {end - origin:.1f} µs: {name}"
    return Bar(100 * (begin - origin) / width, 100 * (end - begin) / width, letter_of(name) or "x", words)
