"""A comparison in words, for terminals and the logs of CI, and as JSON for programs.

reference  torch 2.13.0 on gloo: CONFORMS to …            (run.jsonl)
run        my_fsdp 1.0 on hccl: DOES NOT CONFORM: …       (mine.jsonl)

differs    implementation: torch 2.13.0 → my_fsdp 1.0

2 regressed
  must    sharding/1d-layout in threads, processes: pass → fail: rank 0: it is 2.0, expected 1.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.data.text import one_line, plural, ratio_text, unique
from harness.run_comparison.difference import Change, Comparison, Fact, Party, RowChange

#: The version of the JSON form. It grows when a key changes its meaning or goes; a new key may come without.
SCHEMA = 1
#: Lines of one kind that are shown, unless all are asked for; regressions are always shown.
MOST_LINES = 20

#: What each kind of change is, in the order in which kinds are told.
EXPLAINED = {
    Change.REGRESSED: "passed in the reference",
    Change.LOST: "planned, and no result was written",
    Change.EXCUSED: "passed in the reference, fails here under a waiver",
    Change.NO_LONGER_RUN: "tried in the reference only",
    Change.NEWLY_RUN: "tried in this run only",
    Change.FIXED: "did not pass in the reference",
    Change.CHANGED: "ended otherwise",
    Change.REMOVED: "results of the reference's plan only",
    Change.ADDED: "results of this run's plan only",
}


def text_of(comparison: Comparison, whole: bool = False) -> str:
    """The comparison in lines of text that no terminal obeys; ``whole`` leaves nothing out."""
    parts = [
        list(_parties(comparison)),
        [f"differs    {_fact(fact)}" for fact in comparison.facts],
        list(_claims(comparison)),
        *(list(_of_kind(comparison, change, whole)) for change in EXPLAINED),
        list(_requirements(comparison, whole)),
        list(_drift(comparison, whole)),
        [_sum(comparison)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _parties(comparison: Comparison) -> Iterator[str]:
    for name, party in (("reference", comparison.reference), ("run", comparison.run)):
        who = one_line(f"{party.implementation} on {party.backend}: {party.standing} ({party.path})")
        yield f"{name:9}  {who}"
        yield from (f"{'':9}  damaged: {one_line(note)}" for note in party.damage)


def _fact(fact: Fact) -> str:
    return f"{one_line(fact.name, 80)}: {one_line(fact.reference, 120) or '–'} → {one_line(fact.run, 120) or '–'}"


def _claims(comparison: Comparison) -> Iterator[str]:
    if comparison.claims_removed:
        yield f"claims     of the reference only: {one_line(', '.join(comparison.claims_removed))}"
    if comparison.claims_added:
        yield f"claims     of this run only: {one_line(', '.join(comparison.claims_added))}"


def _of_kind(comparison: Comparison, change: Change, whole: bool) -> Iterator[str]:
    rows = comparison.of(change)
    if rows:
        yield f"{plural(len(rows), 'result')} {change}: {EXPLAINED[change]}"
        yield from _few(list(_lines(rows)), whole or change is Change.REGRESSED)


def _lines(rows: Iterable[RowChange]) -> Iterator[str]:
    """A line for rows that differ in their world alone."""
    alike: dict[tuple[str, str, str, str, str], list[RowChange]] = {}
    for row in rows:
        sign = (row.key.requirement, row.key.parameters, row.was, row.now, _why(row))
        alike.setdefault(sign, []).append(row)
    for (requirement, parameters, was, now, why), same in alike.items():
        name = f"{requirement} in {', '.join(unique(row.key.world for row in same))}" if requirement else parameters
        within = f" [{parameters}]" if parameters and requirement else ""
        end = " → ".join(end for end in (was, now) if end)
        yield f"  {same[0].level:6}  {one_line(f'{name}{within}', 240)}: {end}{f': {why}' if why else ''}"


def _why(row: RowChange) -> str:
    message = row.record.message if row.record and row.now != "pass" else ""
    return one_line((message.splitlines() or [""])[0], 200)


def _requirements(comparison: Comparison, whole: bool) -> Iterator[str]:
    for word, names in (("removed", comparison.removed), ("added", comparison.added)):
        if names:
            yield f"{plural(len(names), 'requirement')} {word}"
            yield from _few([f"  {one_line(name, 120)}" for name in names], whole)


def _drift(comparison: Comparison, whole: bool) -> Iterator[str]:
    if comparison.drift:
        yield f"{plural(len(comparison.drift), 'result')} nearer to the bound, for information: worst ÷ allowed"
        nearest = sorted(comparison.drift, key=lambda drift: -drift.run)
        lines = [
            f"  {one_line(str(drift.key), 240)}: {ratio_text(drift.reference)} → {ratio_text(drift.run)}"
            for drift in nearest
        ]
        yield from _few(lines, whole)


def _few(lines: Sequence[str], whole: bool) -> Iterator[str]:
    shown = len(lines) if whole or len(lines) <= MOST_LINES + 1 else MOST_LINES
    yield from lines[:shown]
    if shown < len(lines):
        yield f"  … and {len(lines) - shown} more lines; --all shows them, --json has them"


def _sum(comparison: Comparison) -> str:
    counts = comparison.counts()
    kinds = ", ".join(f"{count} {change}" for change, count in counts.items() if count)
    against = plural(len(comparison.regressions), "regression") if comparison.regressions else "No regression"
    return f"{plural(len(comparison.rows), 'result')}: {kinds or 'none'}. {against}."


# As JSON.


def json_of(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a JSON object; docs/formats.md explains its keys. Rows that are the same are only counted."""
    return {
        "kind": "comparison",
        "schema": SCHEMA,
        "reference": _party(comparison.reference),
        "run": _party(comparison.run),
        "regressions": len(comparison.regressions),
        "counts": {str(change): count for change, count in comparison.counts().items()},
        "differs": [{"name": f.name, "reference": f.reference, "run": f.run} for f in comparison.facts],
        "claims": {"added": list(comparison.claims_added), "removed": list(comparison.claims_removed)},
        "requirements": {"added": list(comparison.added), "removed": list(comparison.removed)},
        "rows": [_row(row) for row in comparison.rows if row.change is not Change.SAME],
        "drift": [
            {**_key(drift), "reference": drift.reference, "run": drift.run, "where": drift.where}
            for drift in comparison.drift
        ],
    }


def _party(party: Party) -> dict[str, Any]:
    names = ("path", "sha256", "implementation", "backend", "started")
    standing = {"state": str(party.standing.state), "reason": party.standing.reason}
    return {**{name: getattr(party, name) for name in names}, "standing": standing, "damage": list(party.damage)}


def _row(row: RowChange) -> dict[str, Any]:
    now = row.record
    return {
        **_key(row),
        "level": row.level,
        "change": str(row.change),
        "counts": row.counts,
        "reference": row.was or None,
        "run": row.now or None,
        "nodeid": row.nodeid,
        "message": now.message if now else "",
        "cause": now.cause if now else "",
        "ratio": {"reference": _ratio(row.reference), "run": _ratio(now)},
        "reproduce": now.reproduce if now else "",
    }


def _key(row: Any) -> dict[str, Any]:
    return {"requirement": row.key.requirement, "world": row.key.world, "parameters": row.key.parameters}


def _ratio(record: Any) -> float | None:
    return record.ratio if record and record.ratio is not None and math.isfinite(record.ratio) else None
