"""Keeping the records that workers send."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from harness.pytest_plugin.recording import Recorder
from harness.records.codec import as_line
from harness.records.reader import read_run
from harness.records.record import Header
from tests.report.report_samples import row, run_of


def received(recorder: Recorder, name: str, plan: list[str]) -> Any:
    """A worker's first report, as it comes over the wire, on a thread of that worker's own."""
    data = {"fsdp_record": as_line(row(name)), "fsdp_header": as_line(header(plan)), "fsdp_workers": 4}
    receiving = recorder.pytest_report_from_serializable(data)
    next(receiving)
    with pytest.raises(StopIteration) as ended:
        receiving.send(SimpleNamespace(**data))
    return ended.value.value


def header(plan: list[str]) -> Header:
    """The header of a run with this plan, as a worker makes it."""
    return structs.replace(run_of().header, plan=plan, left_out=3, command="")


def test_the_header_comes_before_the_records_of_all_workers(tmp_path: Any) -> None:
    """Whichever worker reports first: nothing is written on its thread, and its report begins the file."""
    record = str(tmp_path / "run.jsonl")
    config: Any = SimpleNamespace(
        invocation_params=SimpleNamespace(args=("suites", "-n2")),
        getoption=lambda name, default=None: {"--record": record}.get(name),
    )
    recorder = Recorder(config)
    plan = [row("a").nodeid, row("b").nodeid]
    reports = [received(recorder, "a", plan), received(recorder, "b", plan)]
    assert not Path(record).exists()
    for report in reversed(reports):
        recorder.pytest_runtest_logreport(report)
    run = read_run(record)
    assert (run.header.plan, run.header.left_out, run.header.command) == (plan, 3, "pytest suites -n2")
    assert recorder.most_workers == 4
    assert [one.requirement for one in run.records] == ["sharding/b", "sharding/a"]
