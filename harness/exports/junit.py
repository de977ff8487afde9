"""A run as JUnit XML, made from its records, for programs that read no other format.

JUnit has four outcomes and we have seven verdicts, and results that were planned but never written::

    pass ─▶ (nothing)     fail, stale waiver ─▶ failure     broken, (never written) ─▶ error
    waived, not claimed, not run ─▶ skipped
"""

from __future__ import annotations

import math
from collections import Counter
from xml.etree import ElementTree

from harness.data.text import clipped, one_line, visible
from harness.records.reader import Run, missing
from harness.records.record import Record, Verdict

ELEMENT_OF = {
    Verdict.PASS: "",
    Verdict.FAIL: "failure",
    Verdict.STALE_WAIVER: "failure",
    Verdict.BROKEN: "error",
    Verdict.WAIVED: "skipped",
    Verdict.NOT_CLAIMED: "skipped",
    Verdict.NOT_RUN: "skipped",
}


def junit_of(run: Run) -> str:
    """The file's text. Values are written as visible text, without the characters that XML forbids."""
    lost = missing(run)
    found = Counter(ELEMENT_OF[record.verdict] for record in run.records)
    suite = ElementTree.Element("testsuite", {
        "name": _text(f"{run.header.implementation} on {run.header.backend}"),
        "tests": str(len(run.records) + len(lost)),
        "failures": str(found["failure"]),
        "errors": str(found["error"] + len(lost)),
        "skipped": str(found["skipped"]),
        "time": _seconds(run.footer.seconds if run.footer else sum(record.seconds for record in run.records)),
        "timestamp": _text(run.header.started),
    })  # fmt: skip
    for record in run.records:
        _case(suite, record, {"implementation": run.header.implementation, "backend": run.header.backend})
    for nodeid in lost:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "missing", "name": _text(nodeid), "time": "0.000"}
        )
        ElementTree.SubElement(case, "error", {"message": "planned, and never written"})
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _case(suite: ElementTree.Element, record: Record, subject: dict[str, str]) -> None:
    names = {"classname": _text(record.requirement), "name": _text(record.nodeid), "time": _seconds(record.seconds)}
    case = ElementTree.SubElement(suite, "testcase", names)
    properties = ElementTree.SubElement(case, "properties")
    ratio = {} if record.ratio is None else {"worst/allowed": f"{record.ratio:.6g}"}
    facts = {"requirement": record.requirement, "level": record.level, "world": record.world}
    for name, value in {**facts, "verdict": str(record.verdict), **subject, **ratio}.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": _text(value)})
    element = ELEMENT_OF[record.verdict]
    if element:
        child = ElementTree.SubElement(case, element, {"message": _text(f"{record.verdict}: {record.message}")})
        child.text = visible(clipped(record.message)) if element != "skipped" else None


def _text(value: str) -> str:
    return one_line(value, 1000)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if math.isfinite(seconds) and abs(seconds) < 1e12 else "0.000"
