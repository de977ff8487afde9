"""A comparison in words, for terminals and the logs of CI.

baseline   torch 2.13.0 on gloo: CONFORMS to …            (run.jsonl)
candidate  my_fsdp 1.0 on hccl: DOES NOT CONFORM: …       (mine.jsonl)

differs    implementation: torch 2.13.0 → my_fsdp 1.0

2 regressed
  must    sharding/layout in threads, processes: pass → fail: rank 0: it is 2.0, expected 1.0
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.data.text import one_line, plural, ratio_text, unique
from harness.run_comparison.difference import Change, Comparison, Fact, RowChange

#: Lines of one kind that are shown, unless all are asked for; regressions are always shown.
MOST_LINES = 20


def text_of(comparison: Comparison, whole: bool = False) -> str:
    """The comparison in lines of text that no terminal obeys; ``whole`` leaves nothing out."""
    parts = [
        list(_sides(comparison)),
        [f"differs    {_fact(fact)}" for fact in comparison.differs],
        list(_claims(comparison)),
        *(
            [f"{plural(len(rows), 'result')} {change}: {why}", *_few(_lines(rows), whole or change is Change.REGRESSED)]
            for change, why, rows in comparison.kinds
        ),
        list(_requirements(comparison, whole)),
        list(_drift(comparison, whole)),
        [comparison.summary],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _sides(comparison: Comparison) -> Iterator[str]:
    for name, side in (("baseline", comparison.baseline), ("candidate", comparison.candidate)):
        who = one_line(f"{side.implementation} on {side.backend}: {side.standing} ({side.path})")
        yield f"{name:9}  {who}"
        yield from (f"{'':9}  damaged: {one_line(note)}" for note in side.damage)


def _fact(fact: Fact) -> str:
    return f"{one_line(fact.name, 80)}: {one_line(fact.baseline, 120) or '–'} → {one_line(fact.candidate, 120) or '–'}"


def _claims(comparison: Comparison) -> Iterator[str]:
    for whose, names in (("the baseline", comparison.claims.removed), ("the candidate", comparison.claims.added)):
        if names:
            yield f"claims     of {whose} only: {one_line(', '.join(names))}"


def _lines(rows: Iterable[RowChange]) -> list[str]:
    """A line for rows that differ in their world alone."""
    alike: dict[tuple[str, str, str, str], list[RowChange]] = {}
    for row in rows:
        end = " → ".join(end for end in (row.baseline, row.candidate) if end)
        alike.setdefault((row.requirement, row.parameters, end, row.why), []).append(row)
    return [_line(same, end, why) for (*_, end, why), same in alike.items()]


def _line(rows: Sequence[RowChange], end: str, why: str) -> str:
    first, worlds = rows[0], ", ".join(unique(row.world for row in rows))
    within = f" [{first.parameters}]" if first.parameters else ""
    name = f"{first.requirement} in {worlds}{within}" if first.requirement else first.parameters
    return f"  {first.level:6}  {one_line(name, 240)}: {end}{f': {why}' if why else ''}"


def _requirements(comparison: Comparison, whole: bool) -> Iterator[str]:
    for word, names in (("removed", comparison.requirements.removed), ("added", comparison.requirements.added)):
        if names:
            yield f"{plural(len(names), 'requirement')} {word}"
            yield from _few([f"  {one_line(name, 120)}" for name in names], whole)


def _drift(comparison: Comparison, whole: bool) -> Iterator[str]:
    if comparison.drift:
        yield f"{plural(len(comparison.drift), 'result')} nearer to the bound, for information: worst ÷ allowed"
        lines = [
            f"  {one_line(drift.name, 240)}: {ratio_text(drift.baseline)} → {ratio_text(drift.candidate)}"
            for drift in comparison.drift
        ]
        yield from _few(lines, whole)


def _few(lines: Sequence[str], whole: bool) -> Iterator[str]:
    shown = len(lines) if whole or len(lines) <= MOST_LINES + 1 else MOST_LINES
    yield from lines[:shown]
    if shown < len(lines):
        yield f"  … and {len(lines) - shown} more lines; --all shows them, --json has them"
