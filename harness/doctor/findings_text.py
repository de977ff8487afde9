"""The findings as lines for a log, with a verdict and advice, and as JSON for a machine."""

from __future__ import annotations

import json
import platform
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness import __version__
from harness.data.text import one_line, seconds_text
from harness.doctor.checks import Finding, Status
from harness.doctor.examination import Examination

#: Raised when a field changes its meaning or goes; new fields may come without.
SCHEMA = "fsdp-conformance/doctor"
VERSION = 2
_WIDTH = 120


def status(examined: Examination) -> int:
    """0 no MUST is broken, 1 a MUST depends on something missing or wrong, 2 not everything could be asked."""
    if any(found.counts for found in examined.findings):
        return 1
    return 2 if examined.incomplete else 0


def text(examined: Examination) -> str:
    """What comes below the findings: the subject, the verdict in one line, what to do, and the verdict again."""
    faults = [found for found in examined.findings if found.is_fault]
    verdict = _summary(examined)
    lines = ["", _subject(examined), verdict]
    if faults:
        lines += ["", "What to do, from the top, since what is below may follow from it:"]
    for found in sorted(faults, key=lambda found: not found.counts):
        lines += ["", *_advice(found)]
    return "\n".join([*lines, *(["", verdict] if faults else [])])


def _summary(examined: Examination) -> str:
    tally = Counter(found.state for found in examined.findings)
    numbers = ", ".join(f"{tally[state]} {state}" for state in Status)
    counted = ", ".join(found.check.id for found in examined.findings if found.counts)
    verdict = f"a MUST depends on {counted}" if counted else "no MUST depends on what is missing or wrong"
    if not tally[Status.MISSING] and not tally[Status.WRONG]:
        verdict = "nothing is missing"
    verdict += "; not everything could be asked" if examined.incomplete else ""
    return f"fsdp-conformance doctor: {numbers}; {verdict} ({seconds_text(examined.seconds)})"


def _subject(examined: Examination) -> str:
    facts = examined.facts
    where = f" ({one_line(facts['process_group'])} on {one_line(facts['device_type'])})" if facts else ""
    torch = f", torch {facts['torch']}" if facts else ""
    names = f"{one_line(examined.implementation)} on {one_line(examined.backend)}{where}"
    return f"{names}{torch}, Python {platform.python_version()}"


def line(found: Finding) -> str:
    """One finding."""
    said = f"  [{one_line(found.said, 100)}]" if found.said else ""
    return f"{found.state:<10}{found.check.id}: {found.check.what.replace('`', '')}{said}"


def _advice(found: Finding) -> Iterator[str]:
    check = found.check
    yield f"{check.id} {found.state}{'' if found.counts else f' ({check.level})'}: {check.what}"
    for name, words in (("said", found.said), ("without it", check.without), ("do", check.todo)):
        if words:
            line = f"  {name}: {words}"
            yield textwrap.fill(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def data(examined: Examination) -> dict[str, Any]:
    """Everything, as JSON types; the fields are described in ``docs/doctor.md``."""
    tally = Counter(found.state for found in examined.findings)
    subject = {"implementation": examined.implementation, "backend": examined.backend, **examined.facts}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "suite": __version__,
        "python": platform.python_version(),
        "subject": subject,
        "seconds": round(examined.seconds, 3),
        "exit_status": status(examined),
        "incomplete": examined.incomplete,
        "counts": {state.value: tally[state] for state in Status},
        "checks": list(map(_check, examined.findings)),
    }


def _check(found: Finding) -> dict[str, Any]:
    answered = {"state": found.state.value, "said": found.said, "must_depends_on_it": found.counts}
    return {**asdict(found.check), **answered, "seconds": found.seconds}


def as_json(examined: Examination) -> str:
    """The data as JSON text."""
    return json.dumps(data(examined), indent=2, ensure_ascii=False) + "\n"
