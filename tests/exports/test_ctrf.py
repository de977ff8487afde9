"""CTRF is what others expect: our verdicts and facts, for any record file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness import cli
from harness.exports.ctrf import STATUSES, ctrf_of, milliseconds
from harness.records.output import json_document
from harness.records.reader import Run
from harness.records.record import Footer, Verdict
from tests.report.report_samples import file_of, full_run, row, run_of
from tests.untrusted import harmless
from tests.untrusted.strategies import inputs
from tests.untrusted.test_records import any_runs

# CTRF.

#: What CTRF requires, and of what type, by its schema.
SUMMARY = {"tests", "start", "stop", *STATUSES}
TEST_KEYS = {
    "id", "name", "status", "duration", "suite", "message", "trace", "rawStatus", "tags", "type", "filePath", "extra",
}  # fmt: skip
ENVIRONMENT = {"reportName", "appName", "appVersion", "osPlatform", "testEnvironment", "healthy"}


def check_ctrf(report: Any) -> None:
    """A report has what CTRF requires, with its types, and no key that CTRF has no place for."""
    assert report["reportFormat"] == "CTRF"
    assert report["specVersion"].count(".") == 2
    assert set(report) <= {"reportFormat", "specVersion", "reportId", "timestamp", "generatedBy", "results"}
    results = report["results"]
    assert set(results) == {"tool", "summary", "tests", "environment", "extra"}
    assert results["tool"]["name"]
    assert set(results["summary"]) == SUMMARY | {"duration"}
    assert all(type(value) is int for value in results["summary"].values())
    assert results["summary"]["tests"] == len(results["tests"]) == sum(results["summary"][one] for one in STATUSES)
    assert set(results["environment"]) == ENVIRONMENT
    for test in results["tests"]:
        check_ctrf_test(test)
    assert len({test["id"] for test in results["tests"]}) == len(results["tests"])


def check_ctrf_test(test: Any) -> None:
    """One test has what CTRF requires."""
    assert {"name", "status", "duration"} <= set(test) <= TEST_KEYS
    assert test["name"]
    assert test["status"] in STATUSES
    assert type(test["duration"]) is int
    assert isinstance(test["extra"], dict)
    assert all(isinstance(word, str) for key in ("suite", "tags") for word in test.get(key, []))
    assert all(isinstance(test.get(key, ""), str) for key in ("message", "trace", "rawStatus", "filePath"))


def test_ctrf_has_our_verdicts_and_facts() -> None:
    """Each verdict has its status, is the raw status itself, and a row that was never written is pending."""
    report = ctrf_of(full_run())
    check_ctrf(report)
    found = {test["rawStatus"]: test["status"] for test in report["results"]["tests"]}
    assert found == {
        "pass": "passed", "fail": "failed", "stale waiver": "failed", "broken": "failed", "waived": "other",
        "not claimed": "skipped", "not run": "skipped", "missing": "pending",
    }  # fmt: skip
    passing = next(test for test in report["results"]["tests"] if test["rawStatus"] == "pass")
    facts = {"requirement": "sharding/PASS", "level": "must", "world": "threads", "ratio": 0.37, "checks": 41}
    assert facts.items() <= passing["extra"].items()


def test_what_ctrf_calls_failed_is_what_fails_the_run() -> None:
    """Red in a dashboard is red in pytest, neither more nor less."""
    for verdict in Verdict:
        [test] = ctrf_of(run_of(row("a", verdict)))["results"]["tests"]
        assert (test["status"] == "failed") is verdict.is_red


def test_a_run_that_has_lost_results_is_not_healthy() -> None:
    """In CTRF, too, the results that the run counted are held against the records."""
    for count in (1, 2):
        ended = Footer("2026-11-21T04:11:09+00:00", 60.0, 0, counts={"pass": count})
        told = ctrf_of(run_of(row("a"), footer=ended))["results"]
        assert told["environment"]["healthy"] is (count == 1)


def test_ctrf_knows_a_row_again_in_the_next_run() -> None:
    """Ids are the same for the same row, also if its test has moved, so that dashboards can follow it."""
    rows = [row("a"), row("a", world="processes"), row("b")]
    moved = [replace(one, nodeid=one.nodeid.replace("t.py", "u.py"), seconds=3.0) for one in rows]
    before, after = (ctrf_of(run_of(*some))["results"]["tests"] for some in (rows, moved))
    assert [test["id"] for test in before] == [test["id"] for test in after]


def test_ctrf_has_times_in_milliseconds() -> None:
    """Start and stop since 1970, durations beside; an unreadable start is 1970 itself."""
    run = run_of(row("a", seconds=1.2345))
    summary = ctrf_of(run)["results"]["summary"]
    assert summary["start"] == 1_795_234_209_000
    assert (summary["stop"] - summary["start"], summary["duration"]) == (60_000, 60_000)
    assert ctrf_of(run)["results"]["tests"][0]["duration"] == 1234
    strange = replace(run, header=replace(run.header, started="once"), footer=None)
    summary = ctrf_of(strange)["results"]["summary"]
    assert (summary["start"], summary["stop"]) == (0, 1234)


@given(seconds=st.floats())
def test_any_duration_is_a_number_of_milliseconds(seconds: float) -> None:
    """Whatever a record says, it is an integer that every JSON reader knows."""
    assert 0 <= milliseconds(seconds) < 2**53


@inputs(60)
@given(run=any_runs())
def test_any_record_file_becomes_ctrf(run: Run) -> None:
    """Whatever a record file holds, its report has what CTRF requires, and is ASCII JSON."""
    with harmless.harmless():
        text = json_document(ctrf_of(run))
    check_ctrf(json.loads(text.encode("ascii")))


def test_the_command_prints_or_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout alone, or in the file that -o names."""
    record = file_of(full_run(), tmp_path / "run.jsonl")
    assert cli.main(["ctrf", str(record)]) == 0
    printed = capsys.readouterr().out
    check_ctrf(json.loads(printed))
    assert cli.main(["ctrf", str(record), "-o", str(tmp_path / "ctrf.json")]) == 0
    assert (tmp_path / "ctrf.json").read_text() == printed
