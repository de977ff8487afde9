"""Rows of failures of the suites' own requirements, for what makes something of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.report.read import Run
from harness.reproduce.choose import Choice, choose
from harness.reproduce.forms import forms_of
from harness.reproduce.sources import Sources
from harness.suite_tests import suite_tests
from harness.verdict import Record, Verdict
from tests.report_samples import run_of

ROOT = Path(__file__).resolve().parent.parent
SUITES = ROOT / "suites"
TESTS = {test.requirement: test for test in suite_tests(SUITES)}

#: A case of parity/exact, as records have it.
CASE = {
    "case": "TrainingCase",
    "world_size": 2,
    "net": {"case": "Stack", "dim": 3, "blocks": ["linear"], "multiplier": 2, "bias": True},
    "sharded": [],
    "dtype": "float32",
    "exact": True,
    "seed": 0,
    "mesh": [],
    "reshard_after_forward": True,
    "steps": 1,
    "batch": 3,
}


def failure(requirement: str = "parity/exact", world: str = "threads", **fields: Any) -> Record:
    """A failing row of a requirement, on torch and gloo; of one with several forms, of the first."""
    test = TESTS[requirement]
    file, _, function = test.nodeid.partition("::")
    source = Sources()[file.removesuffix(".py").replace("/", ".")]
    row = "-".join(filter(None, (world, next(iter(forms_of(source, function))))))
    values: dict[str, Any] = {
        "requirement": requirement,
        "nodeid": f"{test.nodeid}[{row}]",
        "chapter": requirement.partition("/")[0],
        "statement": "It holds.",
        "level": "must",
        "world": world,
        "verdict": Verdict.FAIL,
        "message": "rank 0: it is 2, expected 1",
        "cause": "disagreement",
        "case": CASE if requirement == "parity/exact" else None,
        "reproduce": "pytest x --implementation torch --backend gloo",
    }
    return Record(**{**values, **fields})


def chosen(record: Record, implementation: str = "", backend: str = "") -> tuple[Choice, Run]:
    """A row, chosen in a run of its own."""
    run = run_of(record)
    return choose(run, record.nodeid, SUITES, implementation, backend), run
