"""Keeping the records that workers send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.pytest_plugin.options import JOURNAL, PROBLEMS, RECORDS
from harness.pytest_plugin.recorder import Recorder
from harness.records.codec import as_line
from harness.records.reader import read_run
from tests.report.report_samples import row


def heard(recorder: Recorder, name: str, plan: list[str]) -> Any:
    """A worker's report, as it comes over the wire, on a thread of that worker's own."""
    data = {"fsdp_record": as_line(row(name)), "fsdp_plan": plan, "fsdp_provenance": {"left_out": 3}}
    hearing = recorder.pytest_report_from_serializable(data)
    next(hearing)
    with pytest.raises(StopIteration) as ended:
        hearing.send(SimpleNamespace(**data))
    return ended.value.value


def test_the_header_comes_before_the_records_of_all_workers(tmp_path: Any) -> None:
    """Whichever worker is heard first: nothing is written on its thread, and its report begins the file."""
    record = str(tmp_path / "run.jsonl")
    options = {
        "--implementation": "torch",
        "--backend": "gloo",
        "--record": record,
        "--world": "both",
        "--level": "all",
    }
    stash = pytest.Stash()
    stash[RECORDS], stash[PROBLEMS] = [], []
    config: Any = SimpleNamespace(
        stash=stash, invocation_params=SimpleNamespace(args=()), getoption=lambda name, default=None: options.get(name)
    )
    recorder = Recorder(config)
    plan = [row("a").nodeid, row("b").nodeid]
    reports = [heard(recorder, "a", plan), heard(recorder, "b", plan)]
    assert JOURNAL not in stash
    for report in reversed(reports):
        recorder.pytest_runtest_logreport(report)
    run = read_run(record)
    assert (run.header.plan, run.header.left_out) == (plan, 3)
    assert [one.requirement for one in run.records] == ["sharding/b", "sharding/a"]
    stash[JOURNAL].close()
