"""The findings as a table for a log, and as JSON for a machine."""

from __future__ import annotations

import json
import platform
import textwrap
from collections import Counter
from typing import Any

from harness import __version__
from harness.data.text import one_line, seconds_text
from harness.doctor.rows import Finding, Row, State, counts
from harness.doctor.supervise import Examination
from harness.doctor.table import all_rows, in_order

#: Raised when a field changes its meaning or goes; new fields may come without.
SCHEMA = "fsdp-conformance/doctor"
VERSION = 1
_WIDTH = 120


def status(examined: Examination) -> int:
    """0 all found, 1 a MUST depends on something missing or wrong, 2 not everything could be asked."""
    if any(_counted(examined)):
        return 1
    return 2 if examined.ran_out else 0


def _counted(examined: Examination) -> list[str]:
    declared = frozenset(examined.facts.get("lacks", ()))
    rows = all_rows()
    return [number for number, found in examined.findings.items() if counts(rows[number], found.state, declared)]


def text(examined: Examination) -> str:
    """The summary in one line, the table, and what to do."""
    rows = in_order()
    lines = [_summary(examined), _subject(examined), ""]
    lines += [_line(row, examined.findings[number]) for number, row in rows.items()]
    bad = [row for row in rows.values() if examined.findings[row.number].state in (State.MISSING, State.WRONG)]
    if bad:
        lines += ["", "What to do, from the top, since what is below may follow from it:"]
    first = sorted(bad, key=lambda row: row.number not in _counted(examined))
    for row in first:
        lines += ["", *_advice(row, examined)]
    return "\n".join(lines) + "\n"


def _summary(examined: Examination) -> str:
    tally = Counter(found.state for found in examined.findings.values())
    numbers = ", ".join(f"{tally[state]} {state}" for state in State)
    counted = _counted(examined)
    verdict = f"a MUST depends on {', '.join(counted)}" if counted else "no MUST depends on what is missing or wrong"
    if not tally[State.MISSING] and not tally[State.WRONG]:
        verdict = "nothing is missing"
    if examined.ran_out:
        verdict += "; time ran out"
    return f"fsdp-conformance doctor: {numbers}; {verdict} ({seconds_text(examined.seconds)})"


def _subject(examined: Examination) -> str:
    facts = examined.facts
    where = f" ({facts['process_group']} on {facts['device_type']})" if facts else ""
    torch = f", torch {facts['torch']}" if facts else ""
    names = f"{one_line(examined.implementation)} on {one_line(examined.backend)}{where}"
    return f"{names}{torch}, Python {platform.python_version()}"


def _line(row: Row, found: Finding) -> str:
    said = f"  [{one_line(found.said, 100)}]" if found.said else ""
    return f"{row.number:>4} {found.state:<10}{row.what.replace('`', '')}{said}"


def _advice(row: Row, examined: Examination) -> list[str]:
    found = examined.findings[row.number]
    is_counted = row.number in _counted(examined)
    level = "" if is_counted else " (declared in Backend.lacks)" if row.level == "must" else f" ({row.level})"
    entries = [("said", found.said), ("without it", row.without), ("do", row.todo)]
    body = [_wrapped(f"{name}: {words}") for name, words in entries if words]
    return [f"{row.number} {found.state}{level}: {row.what}", *body]


def _wrapped(words: str) -> str:
    return textwrap.fill(words, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def data(examined: Examination) -> dict[str, Any]:
    """Everything, as JSON types; the fields are described in ``docs/doctor.md``."""
    tally = Counter(found.state for found in examined.findings.values())
    subject = {"implementation": examined.implementation, "backend": examined.backend, **examined.facts}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "suite": __version__,
        "python": platform.python_version(),
        "subject": subject,
        "seconds": round(examined.seconds, 3),
        "exit_status": status(examined),
        "ran_out_of_time": examined.ran_out,
        "counts": {state.value: tally[state] for state in State},
        "rows": [_row(row, examined) for row in in_order().values()],
    }


def _row(row: Row, examined: Examination) -> dict[str, Any]:
    found = examined.findings[row.number]
    return {
        "row": row.number,
        "subject": row.subject,
        "level": row.level,
        "what": row.what,
        "state": found.state.value,
        "said": found.said,
        "must_depends_on_it": row.number in _counted(examined),
        "declared": bool(row.limit) and row.limit in examined.facts.get("lacks", ()),
        "without": row.without,
        "todo": row.todo,
        "seconds": found.seconds,
    }


def as_json(examined: Examination) -> str:
    """The data as JSON text."""
    return json.dumps(data(examined), indent=2, ensure_ascii=False) + "\n"
