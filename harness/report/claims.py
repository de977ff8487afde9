"""What a subject claims, and what the run has to say of that: four lists of features.

claimed              results of it were tried, or the record names it
not claimed          with the subject's reason
could be claimed     not claimed, tried all the same (``--unclaimed try``), and every result that was tried passed
not tried here       claimed, and no result that needs it was tried
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.data.text import plural, unique
from harness.records.record import Header, Record, Verdict
from harness.records.standing import worst_of

#: How many features are shown: ten times as many as there are, and as a page can have.
MOST = 500


@dataclass(frozen=True)
class Claim:
    """One feature: the verdicts of the results that need it, in words, or why it is not claimed.

    ``mark`` is the icon that says the same, where the list does not have one icon for all.
    """

    name: str
    said: str
    mark: str = ""


@dataclass(frozen=True)
class Claims:
    """The four lists."""

    claimed: tuple[Claim, ...]
    not_claimed: tuple[Claim, ...]
    could: tuple[Claim, ...]
    idle: tuple[Claim, ...]


def claims_of(header: Header, records: Iterable[Record]) -> Claims:
    """The lists of one run."""
    needing: dict[str, list[Record]] = {}
    for record in records:
        for feature in unique(record.features[:MOST]):
            needing.setdefault(feature, []).append(record)
    claims, reasons = unique(header.claims)[:MOST], dict(list(header.not_claimed.items())[:MOST])
    idle = [_idle(name, needing.get(name, [])) for name in claims]
    return Claims(
        claimed=(*(_claimed(name, needing.get(name, [])) for name in claims), *_rest(len(header.claims))),
        not_claimed=(*(Claim(name, why) for name, why in reasons.items()), *_rest(len(header.not_claimed))),
        could=tuple(one for one in map(_could, _unclaimed(reasons, needing)) if one),
        idle=tuple(one for one in idle if one),
    )


def _rest(count: int) -> list[Claim]:
    """What is said of features beyond the most that are shown."""
    return [Claim("others", f"{count - MOST} more; the record file has them")] if count > MOST else []


def _unclaimed(reasons: Mapping[str, str], needing: Mapping[str, list[Record]]) -> list[tuple[str, list[Record]]]:
    """Each feature that is not claimed, with the results that were left out because of that."""
    left_out = {
        name: [record for record in records if record.verdict is Verdict.NOT_CLAIMED]
        for name, records in needing.items()
    }
    return [(name, left_out.get(name, [])) for name in unique([*reasons, *(n for n, rows in left_out.items() if rows)])]


def _claimed(name: str, rows: list[Record]) -> Claim:
    """A claimed feature with the verdicts of its results, marked with the one that a reader must see first.

    Results that are not claimed need another feature, too, and say nothing of this one.
    """
    if not rows:
        return Claim(name, "no requirement of this run needs it by name", str(Verdict.NOT_RUN))
    found = Counter(record.verdict for record in rows)
    said = ", ".join(f"{found[verdict]} {verdict}" for verdict in Verdict if found[verdict])
    if len(found) == 1 < len(rows):
        said = f"all {rows[0].verdict}"
    mark = worst_of([verdict for verdict in found if verdict is not Verdict.NOT_CLAIMED] or found)
    return Claim(name, f"{plural(len(rows), 'result')}: {said}", str(mark))


def _idle(name: str, rows: list[Record]) -> Claim | None:
    if not rows or any(row.was_tried for row in rows):
        return None
    reasons = unique(record.message for record in rows if record.message)
    return Claim(name, f"{plural(len(rows), 'result')} not tried: {reasons[0] if reasons else 'no reason given'}")


def _could(unclaimed: tuple[str, list[Record]]) -> Claim | None:
    name, rows = unclaimed
    ends = [record.tried for record in rows if record.tried]
    if not ends or any(end != "pass" for end in ends):
        return None
    rest = len(rows) - len(ends)
    more = f"; {plural(rest, 'result')} could not be tried" if rest else ""
    return Claim(
        name,
        f"{plural(len(ends), 'result')}, tried although not claimed; {'it' if len(ends) == 1 else 'all'} passed{more}",
    )
