"""Results of the suites' own requirements that failed, and cases that their tests draw."""

from __future__ import annotations

from typing import Any

import pytest

from harness.data.case import Case
from harness.records.record import Record, Verdict
from harness.reproduce.choose import Choice, choose
from harness.reproduce.suite_test import forms, function_of
from harness.requirements.finder import suite_tests
from harness.trial import Trial
from harness.vendor.load import Subject
from tests import ROOT as ROOT
from tests.report.report_samples import run_of

SUITES = ROOT / "suites"
TESTS = {test.requirement: test for test in suite_tests(SUITES)}

#: A case of parity/exact, as records have it.
CASE = {
    "case": "TrainingCase",
    "world_size": 2,
    "net": {"case": "Stack", "dim": 3, "blocks": ["linear"], "multiplier": 2, "bias": True, "frozen": []},
    "sharded": [],
    "dtype": "float32",
    "exact": True,
    "seed": 0,
    "mesh": [],
    "reshard_after_forward": True,
    "steps": 1,
    "batch": 3,
    "acts": [],
    "how": "",
}


def failure(requirement: str = "parity/exact", world: str = "threads", **fields: Any) -> Record:
    """A failed result of a requirement, on torch and gloo; of one with several forms, of the first."""
    test = TESTS[requirement]
    form = "-".join(filter(None, (world, forms(function_of(test))[0])))
    values: dict[str, Any] = {
        "requirement": requirement,
        "nodeid": f"{test.nodeid}[{form}]",
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


def chosen(record: Record, implementation: str = "", backend: str = "") -> Choice:
    """A result, chosen in a run of its own."""
    return choose(run_of(record), record.nodeid, SUITES, implementation, backend)


def drawn_cases(requirement: str) -> list[Case]:
    """Some cases that the test of a requirement draws, the explicit ones first."""
    function: Any = function_of(TESTS[requirement])
    found: list[Case] = []
    trial = Trial("threads", Subject("torch", "gloo"), 4)
    with pytest.MonkeyPatch.context() as patch, trial.offering():
        patch.setattr(function.hypothesis, "inner_test", lambda trial, case: found.append(case))
        function(trial=trial)
    return found
