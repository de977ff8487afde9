"""What streams ran, as a picture of time."""

from __future__ import annotations

from harness.records.record import Span
from harness.report.pictures.timeline import MOST_BARS, timeline_of

SPANS = [
    Span(stream="device 0, default stream", name="aten::mm", begin=10.0, end=20.0),
    Span(stream="device 0, process group 0", name="all_gather_single", begin=20.0, end=50.0),
]


def test_bars_lie_where_launches_were_in_time() -> None:
    """From the first begin to the last end; collectives have colours of their own."""
    found = timeline_of(SPANS)
    assert found is not None
    assert [(bar.left, bar.width, bar.kind) for lane in found.lanes for bar in lane.bars] == [
        (0.0, 25.0, "x"),
        (25.0, 75.0, "G"),
    ]
    assert found.text.startswith("device 0, default stream\n0.0 to 10.0 µs: aten::mm")


def test_what_is_not_drawn_is_counted() -> None:
    """A long run has its first launches drawn."""
    found = timeline_of(SPANS * MOST_BARS)
    assert found is not None
    assert found.left_out == f"{MOST_BARS} kernels not drawn"


def test_without_launches_there_is_no_picture() -> None:
    """As of backends that do not say, and of records that are damaged."""
    assert timeline_of([]) is None
    assert timeline_of([Span(begin=3.0, end=1.0)]) is not None
