"""What GitHub shows of a run: annotations by cause, and a summary that is text, whatever records say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.exports.github import MOST, annotations_of, step_summary
from harness.exports.summary import summary_of
from harness.records.record import Verdict
from harness.report.__main__ import main
from tests.report.report_samples import HOSTILE, file_of, row, run_of

ERROR = "rank 0 of 2 failed first (raised): NotImplementedError: Uneven sharding of (5, 3)"


def test_results_of_one_cause_are_one_annotation() -> None:
    """With how many there are; a result without a shared cause has one of its own."""
    alike = [row(name, Verdict.FAIL, message=ERROR) for name in "abcd"]
    said = list(annotations_of([run_of(*alike, row("e", Verdict.FAIL, message="rank 0: 2.0, expected 1.0"), row("f"))]))
    assert said == [
        "::error title=torch 2.13 on gloo%3A 4 results::NotImplementedError: Uneven sharding of (5, 3) "
        "(sharding/a [threads], sharding/b [threads], sharding/c [threads] and 1 more)",
        "::error title=torch 2.13 on gloo%3A sharding/e [threads]::rank 0: 2.0, expected 1.0",
    ]


def test_a_run_without_failures_is_not_annotated() -> None:
    """Neither is what is waived or not claimed."""
    assert list(annotations_of([run_of(row("a"), row("b", Verdict.WAIVED), row("c", Verdict.NOT_CLAIMED))])) == []


def test_a_message_is_no_command_and_no_markup() -> None:
    """A record cannot end a line, begin another command, or write Markdown or HTML into the summary."""
    message = f"a\n::add-mask::b\r\n## c <img src=x> [d](http://e) `f` @g\u2028::error::{HOSTILE}"
    run = run_of(row("a", Verdict.FAIL, message=message))
    run = replace(run, header=replace(run.header, implementation="x\n::stop-commands::y"))
    for line in annotations_of([run]):
        assert len(line.splitlines()) == 1
        assert line.startswith("::error title=")
    shown = [line for line in step_summary([run]).splitlines() if line.startswith(("###", "- "))]
    assert len(shown) == 2
    assert not re.search(r"(?<!\\)[<>`\[\]@]", "".join(shown))


def test_the_summary_has_verdicts_by_level_and_the_causes() -> None:
    """Of every run, and no more causes than are of use."""
    many = run_of(*(row(f"n{n}", Verdict.FAIL, message=f"rank 0: value {n}") for n in range(MOST + 2)))
    lines = step_summary([run_of(row("a")), many]).splitlines()
    assert lines[0] == "### torch 2\\.13 on gloo: CONFORMS to every requirement planned\\: 1 MUST result passes"
    assert f"| must | 0 | {MOST + 2} | 0 | 0 | 0 | 0 | 0 |" in lines
    assert lines[-2] == "- and 2 more causes, which the page has"


def test_a_step_gets_annotations_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary is added to what the step has said before; anywhere else there is none."""
    summary, record = (
        tmp_path / "summary.md",
        file_of(run_of(row("a", Verdict.FAIL, message="off")), tmp_path / "a.jsonl"),
    )
    summary.write_text("before\n")
    arguments = [str(record), "-o", str(tmp_path / "page.html"), "--github"]
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert main(arguments) == 0
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("::error title=") == 2
    assert summary.read_text().startswith("before\n### torch")
    assert summary.read_text().count("###") == 1


def test_programs_get_verdicts_and_red_results_as_json(tmp_path: Path) -> None:
    """Every red result with its message and how to reproduce it."""
    run: Any = run_of(row("a", Verdict.FAIL, message="off", reproduce="pytest t.py"), row("b"))
    record, file = file_of(run, tmp_path / "a.jsonl"), tmp_path / "summary.json"
    assert main([str(record), "-o", str(tmp_path / "page.html"), "--json", str(file)]) == 0
    read = json.loads(file.read_text())
    assert read == json.loads(json.dumps(summary_of([run])))
    (one,) = read["runs"]
    assert (one["standing"], one["counts"]) == ("DOES NOT CONFORM", {"must": {"fail": 1, "pass": 1}})
    assert [(red["requirement"], red["message"], red["reproduce"]) for red in one["red"]] == [
        ("sharding/a", "off", "pytest t.py")
    ]
