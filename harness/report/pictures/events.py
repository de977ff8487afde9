"""The collectives that each rank issued in a failing case, as lanes beside each other, and where ranks first differ.

Rank 1 reduces with a sum where rank 0 averages; columns are the order of a rank's own collectives, not time::

                 0    1    2
    rank 0       G    G    S·AVG
    rank 1       G    G    S·SUM
                           ▲ the first place where ranks differ

What a collective must agree in, it must agree in with the others of its ranks, so those are compared: of each set of
ranks, the first collective of one with the first of the other, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.data.text import one_line, plural
from harness.records.record import Collective

#: How many lanes and columns are drawn, and how many columns before the place where ranks differ.
MOST_LANES, MOST_COLUMNS, BEFORE = 16, 40, 24
#: What a collective has in common on all ranks of it.
_COMMON = ("op", "bytes", "dtype", "reduce")
#: The letter in the box of a collective, by the start of its name; that and the words tell them apart, not the colour.
_LETTERS = {"all_gather": "G", "reduce_scatter": "S", "all_reduce": "R", "broadcast": "B", "all_to_all": "A"}


@dataclass(frozen=True)
class Box:
    """A collective: its column among those drawn, its letter, whether ranks differ in it, and its words.

    ``waits`` is whether its rank waited for it.
    """

    column: int
    letter: str
    differs: bool
    words: str
    waits: bool


@dataclass(frozen=True)
class RankLane:
    """One lane; ``text`` has the same as the boxes, a line each."""

    name: str
    boxes: tuple[Box, ...]
    text: str


@dataclass(frozen=True)
class Lanes:
    """The picture, and the same in words: ``said`` where ranks differ, and ``left_out`` what is not drawn."""

    ranks: tuple[RankLane, ...]
    columns: int
    start: int
    said: str
    left_out: str

    @property
    def text(self) -> str:
        """All lanes as text, one after the other."""
        return "\n\n".join(f"{rank.name}\n{rank.text}" for rank in self.ranks)


@dataclass(frozen=True)
class _Call:
    """A collective of one rank, by its place among that rank's collectives."""

    column: int
    event: Collective
    waits: bool

    @property
    def common(self) -> tuple[str, ...]:
        """What it must agree in with the other ranks'."""
        return tuple(repr(self.event.get(name)) for name in _COMMON)

    @property
    def words(self) -> str:
        """``all_gather of 1024 B float32, ranks 0, 1``."""
        text = {name: one_line(str(self.event.get(name) or ""), 40) for name in (*_COMMON, "ranks")}
        reduced = f" {text['reduce']}" if text["reduce"] else ""
        return f"{text['op']}{reduced} of {text['bytes'] or 0} B {text['dtype']}, ranks {text['ranks'].strip('[]')}"


def lanes_of_events(events: Sequence[Sequence[Collective]]) -> Lanes | None:
    """The lanes of a result's events; None where no rank issued any."""
    calls = [_calls(lane) for lane in events[:MOST_LANES]]
    if not any(calls):
        return None
    differing = first_difference(calls)
    place = min(differing.values(), default=0)
    start = max(0, place - BEFORE)
    longest = max(map(len, calls))
    shown = min(longest - start, MOST_COLUMNS)
    ranks = tuple(_rank(number, lane, start, differing.get(number)) for number, lane in enumerate(calls))
    return Lanes(ranks, shown, start, _said(calls, differing), _left_out(len(events), longest, start, shown))


def _calls(lane: Sequence[Collective]) -> list[_Call]:
    """The collectives of one rank, each with whether the rank waited for it."""
    waited = {event.get("of") for event in lane if event.get("op") == "wait"}
    issued = [(place, event) for place, event in enumerate(lane) if event.get("op") != "wait"]
    return [_Call(column, event, place in waited) for column, (place, event) in enumerate(issued)]


def first_difference(calls: Sequence[Sequence[_Call]]) -> dict[int, int]:
    """By rank the column where it first differs from others of its ranks; a rank that ended early, one past its last.

    Of several such places, that of the lowest column; empty where ranks agree.
    """
    lanes: dict[str, dict[int, list[_Call]]] = {}
    for rank, lane in enumerate(calls):
        for call in lane:
            for member in _members(call, rank, len(calls)):
                lanes.setdefault(repr(call.event.get("ranks")), {}).setdefault(member, [])
            lanes[repr(call.event.get("ranks"))][rank].append(call)
    found = [_first_of_group(members, calls) for members in lanes.values()]
    return min((one for one in found if one), key=lambda one: min(one.values()), default={})


def _members(call: _Call, rank: int, count: int) -> set[int]:
    """The ranks that a collective says it is of, as far as they have a lane, with its own."""
    return {rank, *(one for one in call.event.get("ranks", [])[:MOST_LANES] if 0 <= one < count)}


def _first_of_group(members: dict[int, list[_Call]], calls: Sequence[Sequence[_Call]]) -> dict[int, int]:
    for place in range(max(map(len, members.values()))):
        here = {rank: lane[place] if place < len(lane) else None for rank, lane in members.items()}
        if len({call.common if call else None for call in here.values()}) > 1:
            return {rank: call.column if call else len(calls[rank]) for rank, call in here.items()}
    return {}


def _rank(number: int, lane: Sequence[_Call], start: int, differs: int | None) -> RankLane:
    drawn = lane[start : start + MOST_COLUMNS]
    boxes = tuple(
        Box(call.column - start, _letter(call.event), call.column == differs, call.words, call.waits) for call in drawn
    )
    lines = [f"{call.column}  {call.words}{'' if call.waits else ', never waited for'}" for call in drawn]
    return RankLane(f"rank {number}", boxes, "\n".join(lines) or "nothing here")


def letter_of(name: str) -> str:
    """The letter, and colour, of a kind of collective; "" for what is none of them."""
    return next((letter for start, letter in _LETTERS.items() if name.startswith(start)), "")


def _letter(event: Collective) -> str:
    name = event.get("op", "")
    return letter_of(name) or (name[:1].lower() if name[:1].isascii() and name[:1].isalpha() else "?")


def _said(calls: Sequence[Sequence[_Call]], differing: dict[int, int]) -> str:
    """Where ranks first differ, in a sentence."""
    if not differing:
        return "All ranks issued the same collectives in the same order."
    alike: dict[str, list[str]] = {}
    for rank, column in sorted(differing.items()):
        lane = calls[rank]
        words = (
            f"{lane[column].words} at {column}"
            if column < len(lane)
            else f"nothing more after {plural(len(lane), 'collective')}"
        )
        alike.setdefault(words, []).append(str(rank))
    return f"Ranks first differ here: {'; '.join(_who(ranks, words) for words, ranks in alike.items())}."


def _who(ranks: Sequence[str], words: str) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} issued {words}"


def _left_out(lanes: int, longest: int, start: int, shown: int) -> str:
    return "; ".join(_gaps(lanes, longest, start, shown))


def _gaps(lanes: int, longest: int, start: int, shown: int) -> Iterator[str]:
    if start or start + shown < longest:
        yield f"shown are {start} to {start + shown - 1} of {plural(longest, 'collective')} a rank"
    if lanes > MOST_LANES:
        yield f"and {MOST_LANES} of {lanes} ranks"
