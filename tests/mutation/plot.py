"""The kill table as pictures: how soon faults are caught in a run, and a badge with the kill rate. Plain SVG.

A plot of four faults that were caught after 0.5, 3 and 20 s and never::

    100% |
     75% |              ┌────
     50% |       ┌──────┘
     25% |  ┌────┘
         0.3 s   3 s   30 s   seconds on a logarithmic axis
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.mutation.measure import Fact
from tests.mutation.table import LATE, before_a_run, figures

#: The picture's size, and its frame: left, top, right, bottom, in pixels.
WIDE, HIGH, FRAME = 640, 260, (56, 16, 616, 212)
#: The ends of the axis, in seconds, and where either has words.
FIRST, LAST, WORDS = 0.1, 200.0, (0.1, 0.3, 1, 3, 10, 30, 60, 200)
SHARES = (0, 0.25, 0.5, 0.75, 1)
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#57606a}.b{fill:#fff}"
    ".g{stroke:#8884}.c{fill:none;stroke:#0969da;stroke-width:2.5}.l{stroke:#bc4c00;stroke-dasharray:4 3}"
)


def plot(facts: Sequence[Fact]) -> str:
    """How the share of faults that have been caught grows with the seconds of a run on two ranks."""
    ran = before_a_run(facts)
    found = sorted(fact["run_seconds"] for fact in ran if fact["run_seconds"] is not None)
    soon = sum(seconds <= LATE for seconds in found) / max(len(ran), 1)
    said = f"{soon:.0%} of {len(ran)} faults are caught in the first {LATE:.0f} s of a quick run on two ranks"
    left, top, right, bottom = FRAME
    lines = [
        f'<line class="g" x1="{left}" x2="{right}" y1="{_y(at)}" y2="{_y(at)}"/>' for at in (0, 0.25, 0.5, 0.75, 1)
    ]
    lines += [
        f'<text x="{left - 8}" y="{_y(at) + 4}" text-anchor="end">{at:.0%}</text>' for at in (0, 0.25, 0.5, 0.75, 1)
    ]
    lines += [f'<text x="{_x(at)}" y="{bottom + 18}" text-anchor="middle">{at:g}</text>' for at in WORDS]
    lines.append(
        f'<text x="{(left + right) // 2}" y="{HIGH - 8}" text-anchor="middle">seconds until the first red row</text>'
    )
    lines.append(f'<line class="l" x1="{_x(LATE)}" x2="{_x(LATE)}" y1="{top}" y2="{bottom}"/>')
    lines.append(f'<path class="c" d="{_steps(found, len(ran))}"/>')
    return _picture(WIDE, HIGH, said, lines)


def _steps(found: Sequence[float], ran: int) -> str:
    """A step up for each fault."""
    path, share = [f"M{_x(FIRST)} {_y(0)}"], 0.0
    for place, seconds in enumerate(found, 1):
        path.append(f"H{_x(seconds)}")
        share = place / max(ran, 1)
        path.append(f"V{_y(share)}")
    return " ".join([*path, f"H{_x(LAST)}"])


def _x(seconds: float) -> float:
    left, _, right, _ = FRAME
    along = math.log(min(max(seconds, FIRST), LAST) / FIRST) / math.log(LAST / FIRST)
    return round(left + (right - left) * along, 1)


def _y(share: float) -> float:
    _, top, _, bottom = FRAME
    return round(bottom - (bottom - top) * share, 1)


def badge(facts: Sequence[Fact]) -> str:
    """The kill rate as a badge: grey words, and a coloured figure."""
    found = figures(facts)
    killable = found["faults"] - found["equivalent"]
    words, figure = "faults caught", f"{found['killed']:.0f} of {killable:.0f}"
    colour = "#0969da" if found["killed"] == killable else "#bc4c00"
    lines = [
        '<rect width="92" height="22" rx="4" fill="#57606a"/>',
        f'<rect x="88" width="92" height="22" rx="4" fill="{colour}"/>',
        f'<text class="b" x="45" y="15" text-anchor="middle">{words}</text>',
        f'<text class="b" x="134" y="15" text-anchor="middle">{figure}</text>',
    ]
    return _picture(180, 22, f"{words}: {figure}", lines)


def _picture(wide: int, high: int, said: str, lines: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img"'
    )
    inside = [f"<title>{said}</title>", f"<style>{STYLE}</style>", *lines]
    return "\n".join([f'{head} aria-label="{said}">', *inside, "</svg>", ""])
