"""Failures by their cause, so that results which fail for one reason read as one: the smallest case first.

Rows are of one group if they share a chapter, a class of cause, and the kind of what differs; or the cause that they
name, where a test of combinations has found it; or the error that was raised on ranks::

    parity/exact       disagreement  'gradients' '0.weight'[1]  ─┐
    parity/general     disagreement  'gradients' '2.bias'[0]    ─┴─▶ parity: wrong gradients (2 results)
    parity/general     raised        RuntimeError: …            ───▶ parity: raised RuntimeError (1 result)
    interactions/any   fails with net=tied; passes without      ───▶ interactions: fails with net=tied; … (1 result)
    parity/exact, …    NotImplementedError: Uneven sharding     ───▶ NotImplementedError: Uneven sharding (46 results)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.data.kinds import LEVELS
from harness.data.text import one_line, plural, unique
from harness.records.causes import shared_causes
from harness.records.record import Record
from harness.report.cards import Card, brief_card_of, card_of
from harness.report.evidence import Leads
from harness.report.pictures.events import Lanes, lanes_of_events
from harness.report.pictures.timeline import Timeline, timeline_of
from harness.report.tensors import TensorTable, table_of
from harness.report.words import case_size, kind_of

#: How many results of a group besides the first are shown in full; the others have a line each.
MOST_TOLD = 12
#: For how many groups lanes are drawn.
MOST_DRAWN = 40


@dataclass(frozen=True)
class FailureGroup:
    """Rows that fail alike: ``first`` has the smallest case, ``others`` and ``more`` are the rest, by size of case.

    ``leads`` are sentences on the cause; ``tensors``, ``lanes`` and ``timeline`` are of the first.
    """

    anchor: str
    title: str
    summary: str
    first: Card
    others: tuple[Card, ...]
    more: tuple[Card, ...]
    leads: tuple[str, ...] = ()
    tensors: TensorTable | None = None
    lanes: Lanes | None = None
    timeline: Timeline | None = None

    @property
    def cards(self) -> tuple[Card, ...]:
        """All of its results."""
        return (self.first, *self.others, *self.more)


def groups_of(records: Sequence[Record], anchor: str, file: str) -> tuple[FailureGroup, ...]:
    """The failing results of a run in groups, those with MUST first, else in the order in which they came up.

    Of causes that results name, those of most results come first.
    """
    red = [record for record in records if record.verdict.is_red]
    named = _named(red)
    found: dict[tuple[str, str, str], list[Record]] = {}
    for record in red:
        words, is_error = named.get(record.nodeid, ("", False))
        chapter = "" if is_error else record.chapter
        found.setdefault((chapter, *(("", words) if words else _class_of(record))), []).append(record)
    first = next((place for place, (_, cause, _) in enumerate(found) if not cause), 0)
    places = {sign: place if sign[1] else first for place, sign in enumerate(found)}
    order = sorted(found, key=lambda sign: (min(map(_level, found[sign])), places[sign], -len(found[sign])))
    groups, number, leads = [], 1, Leads(records)
    for place, sign in enumerate(order, start=1):
        rows = sorted(found[sign], key=lambda record: (case_size(record.case), _level(record)))
        anchors = [f"{anchor}-red-{n}" for n in range(number, number + len(rows))]
        number += len(rows)
        groups.append(_group(sign, _cards(rows, anchors, file), f"{anchor}-group-{place}", leads))
    return tuple(_drawn(group) for group in groups[:MOST_DRAWN]) + tuple(groups[MOST_DRAWN:])


def _named(records: Sequence[Record]) -> dict[str, tuple[str, bool]]:
    """The cause that results name, by node id, and whether it is an error; of several the one that most have."""
    causes = shared_causes(records)
    return {record.nodeid: (cause.words, cause.is_error) for cause in reversed(causes) for record in cause.records}


def _class_of(record: Record) -> tuple[str, str]:
    return record.cause or str(record.verdict), kind_of(record)


def _cards(rows: list[Record], anchors: list[str], file: str) -> list[Card]:
    whole = [card_of(row, anchor, file) for row, anchor in zip(rows, anchors[: 1 + MOST_TOLD], strict=False)]
    rest = zip(rows[len(whole) :], anchors[len(whole) :], strict=True)
    return [*whole, *(brief_card_of(row, anchor) for row, anchor in rest)]


def _drawn(group: FailureGroup) -> FailureGroup:
    record = group.first.record
    return replace(group, lanes=lanes_of_events(record.events), timeline=timeline_of(record.timeline))


def _group(sign: tuple[str, str, str], cards: list[Card], anchor: str, leads: Leads) -> FailureGroup:
    chapter, cause, kind = sign
    rows = [card.record for card in cards]
    return FailureGroup(
        anchor=anchor,
        title=one_line(": ".join(filter(None, (chapter, _reason(cause, kind)))), 240),
        summary=_summary(rows),
        first=cards[0],
        others=tuple(cards[1 : 1 + MOST_TOLD]),
        more=tuple(cards[1 + MOST_TOLD :]),
        leads=leads.of(rows),
        tensors=table_of(rows[0].tensors),
    )


def _reason(cause: str, kind: str) -> str:
    if cause == "disagreement":
        return f"wrong {kind or 'values'}"
    return f"{cause} {kind}".strip()


def _summary(rows: list[Record]) -> str:
    requirements, worlds = unique(row.requirement for row in rows), unique(row.world for row in rows)
    many = f"{plural(len(rows), 'result')} of {plural(len(requirements), 'requirement')}, in {', '.join(worlds)}"
    return f"{many}; the smallest case first" if len(rows) > 1 else many


def _level(record: Record) -> int:
    return LEVELS.index(record.level)
