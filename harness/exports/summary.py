"""Runs as one short JSON object, for programs that want the verdict and the failures alone.

{"kind": "fsdp-conformance summary", "schema": 1, "runs": [{"implementation": "torch 2.13.0", "backend": "gloo",
 "standing": "DOES NOT CONFORM", "reason": "1 MUST result fails; …", "counts": {"must": {"pass": 984, "fail": 1}}, …,
 "red": [{"requirement": "parity/exact", "world": "threads", "verdict": "fail", "message": "rank 0: …", …}]}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from harness.data.text import clipped
from harness.records.facts import facts_of
from harness.records.reader import Run
from harness.records.record import Record
from harness.records.standing import standing

KIND: Final = "fsdp-conformance summary"
SCHEMA: Final = 1


def summary_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The object; ``red`` has every result that makes its run fail."""
    return {"kind": KIND, "schema": SCHEMA, "runs": [_run(run) for run in runs]}


def _run(run: Run) -> dict[str, Any]:
    red = [_red(record) for record in run.records if record.verdict.is_red]
    return {**facts_of(run), "reason": standing(run).reason, "problems": list(run.damage), "red": red}


def _red(record: Record) -> dict[str, Any]:
    return {
        "requirement": record.requirement,
        "nodeid": record.nodeid,
        "level": record.level,
        "world": record.world,
        "verdict": str(record.verdict),
        "cause": record.cause,
        "message": clipped(record.message),
        "reproduce": record.reproduce,
    }
