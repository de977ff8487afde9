"""A run as CTRF, the Common Test Report Format (https://ctrf.io), which dashboards and CI systems show.

CTRF has five statuses and we have seven verdicts, and results that were planned but never written::

    pass ─▶ passed        fail, stale waiver, broken ─▶ failed       waived ─▶ other
    not claimed, not run ─▶ skipped                            (never written) ─▶ pending

``failed`` is exactly what makes pytest fail. The verdict itself is ``rawStatus``; fields without a CTRF counterpart are
in ``extra``.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import harness
from harness.data.text import clipped, one_line
from harness.records.reader import Run, miscounted, missing
from harness.records.record import Record, Verdict
from harness.records.standing import standing
from harness.run_comparison.difference import MISSING
from harness.run_comparison.matching import Key, Planned, matched
from harness.waivers.check import subjects

SPECIFICATION = "0.1.0"
STATUSES = ("passed", "failed", "skipped", "pending", "other")
STATUS_OF = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.STALE_WAIVER: "failed",
    Verdict.BROKEN: "failed",
    Verdict.WAIVED: "other",
    Verdict.NOT_CLAIMED: "skipped",
    Verdict.NOT_RUN: "skipped",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The largest integer that every JSON reader knows exactly.
_MOST = 2**53 - 1
_FACTS = (
    "requirement", "chapter", "statement", "level", "world", "cause", "ratio", "worst", "ratios", "checks", "examples",
    "world_sizes", "case", "reproduce", "waiver", "features", "source",
)  # fmt: skip
_OF_THE_RUN = (
    "backend", "worlds", "profile", "level", "suite_version", "claims", "not_claimed", "seed", "command", "environment",
)  # fmt: skip


def ctrf_of(run: Run) -> dict[str, Any]:
    """The report as one JSON object."""
    tests = [_test(key, one, run.header.backend) for key, (one,) in matched((run,)).items() if one is not None]
    moment = _moment(run.footer.finished if run.footer else run.header.started)
    return {
        "reportFormat": "CTRF",
        "specVersion": SPECIFICATION,
        "reportId": _identity(run.sha256),
        **({"timestamp": moment.isoformat()} if moment else {}),
        "generatedBy": f"fsdp-conformance {harness.__version__}",
        "results": {
            "tool": {"name": "fsdp-conformance", "version": run.header.suite_version},
            "summary": _summary(run, tests),
            "tests": tests,
            "environment": _environment(run),
            "extra": _extra(run),
        },
    }


def _summary(run: Run, tests: list[dict[str, Any]]) -> dict[str, int]:
    found = Counter(test["status"] for test in tests)
    took = milliseconds(run.footer.seconds if run.footer else sum(record.seconds for record in run.records))
    began = _moment(run.header.started)
    start = (began - _EPOCH) // timedelta(milliseconds=1) if began else 0
    counts = {status: found[status] for status in STATUSES}
    return {"tests": len(tests), **counts, "start": start, "stop": start + took, "duration": took}


def _test(key: Key, planned: Planned, backend: str) -> dict[str, Any]:
    record = planned.record
    known = {
        "id": _identity(repr((key.requirement, key.world, key.parameters, key.place))),
        "name": str(key) or "unnamed",
        "filePath": planned.nodeid.partition("::")[0],
    }
    if record is None:
        extra = {"requirement": key.requirement, "world": key.world, "backend": backend, "nodeid": planned.nodeid}
        return {**known, "status": "pending", "rawStatus": MISSING, "duration": 0, "extra": extra}
    extra = {**{name: getattr(record, name) for name in _FACTS}, "backend": backend, "nodeid": planned.nodeid}
    return {
        **known,
        "status": STATUS_OF[record.verdict],
        "rawStatus": str(record.verdict),
        "duration": milliseconds(record.seconds),
        "suite": [record.chapter, record.requirement],
        "tags": [record.level, record.world],
        "type": "conformance",
        **({"message": record.message} if record.message else {}),
        **({"trace": trace} if (trace := _trace(record)) else {}),
        "extra": extra,
    }


def _trace(record: Record) -> str:
    ends = [(rank.get("rank"), rank.get("traceback")) for rank in record.ranks]
    return clipped("\n".join(f"rank {rank}:\n{trace}" for rank, trace in ends if trace))


def _environment(run: Run) -> dict[str, Any]:
    name, version = subjects(run.header)[0]
    broken = any(record.verdict is Verdict.BROKEN for record in run.records)
    ended = run.footer is not None and run.footer.exit_status in (0, 1)
    return {
        "reportName": one_line(run.header.subject),
        "appName": name,
        "appVersion": version,
        "osPlatform": run.header.environment.get("platform", ""),
        "testEnvironment": run.header.backend,
        "healthy": ended and not broken and not run.damage and not missing(run) and not miscounted(run),
    }


def _extra(run: Run) -> dict[str, Any]:
    stands = standing(run)
    return {
        **{name: getattr(run.header, name) for name in _OF_THE_RUN},
        "standing": {"state": str(stands.state), "reason": stands.reason},
        "problems": run.footer.problems if run.footer else [],
        "damage": run.damage,
        "sha256": run.sha256,
    }


def milliseconds(seconds: float) -> int:
    """A duration as CTRF has it; 0 for values that are not finite."""
    return min(round(max(seconds, 0) * 1000), _MOST) if math.isfinite(seconds * 1000) else 0


def _identity(text: str) -> str:
    """A UUID that is the same for the same text."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"fsdp-conformance:{text}".encode("utf-8", "replace").decode()))


def _moment(text: str) -> datetime | None:
    """A time in UTC; None if the text is no ISO time."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
