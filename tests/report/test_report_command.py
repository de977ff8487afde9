"""The report's two doors: its command line, and the columns in pytest-html's own report."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from harness.pytest_plugin import html_columns as columns
from harness.pytest_plugin.html_columns import extras_of
from harness.records.record import Record, Verdict
from harness.report import __main__ as command
from tests.report.report_samples import HOSTILE, Parsed, file_of, row, run_of

pytest_plugins = ["pytester"]


def test_the_command_writes_the_page_and_says_where_the_subject_stands(tmp_path, capsys):
    """Standing and path are printed; the page is there; nothing else is left beside it; the exit code is 0."""
    record = file_of(run_of(row("a", Verdict.FAIL), status=1), tmp_path / "run.jsonl")

    assert command.main([str(record), "-o", str(tmp_path / "page.html")]) == 0

    said = capsys.readouterr().out
    assert "torch 2.13 on gloo: DOES NOT CONFORM: 1 MUST result fails; first sharding/a in threads" in said
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.jsonl"]


def test_without_an_output_the_page_is_beside_the_first_record_file(tmp_path):
    """Several record files make one page, named after the first."""
    first = file_of(run_of(row("a")), tmp_path / "mine.jsonl")
    second = file_of(run_of(row("a")), tmp_path / "theirs.jsonl")

    assert command.main([str(first), str(second)]) == 0
    assert "2 runs side by side" in (tmp_path / "mine.html").read_text(encoding="utf-8")


ERRORS = {
    "no such file": (["nowhere.jsonl", "-o", "page.html"], r"nowhere\.jsonl: cannot be read \(No such file"),
    "foreign file": (["notes.txt", "-o", "page.html"], r"notes\.txt, line 1: not a record file"),
    "page is a record file": (["run.jsonl", "-o", "run.jsonl"], r"run\.jsonl: is one of the record files"),
    "page is a directory": (["run.jsonl", "-o", "."], r"\.: is a directory; name the page.html itself"),
    "no such folder": (["run.jsonl", "-o", "no/page.html"], r"no/page\.html: cannot be written \(No such file"),
    "folder is a file": (["run.jsonl", "-o", "notes.txt/page.html"], r"page\.html: cannot be written \(Not a dir"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_the_command_says_in_one_sentence_why_there_is_no_page(tmp_path, monkeypatch, capsys, arguments, message):
    """An error is one line on stderr and exit code 2, and no file is written or changed."""
    monkeypatch.chdir(tmp_path)
    file_of(run_of(row("a")), Path("run.jsonl"))
    Path("notes.txt").write_text("hello\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert command.main(arguments) == 2

    captured = capsys.readouterr()
    assert re.search(message, captured.err)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_page_that_cannot_be_finished_leaves_the_old_one(tmp_path, monkeypatch, capsys):
    """When moving into place fails, the old page stands and no temporary file is left."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    record = file_of(run_of(row("a")), tmp_path / "run.jsonl")
    (tmp_path / "page.html").write_text("old")
    monkeypatch.setattr(os, "replace", full)

    assert command.main([str(record), "-o", str(tmp_path / "page.html")]) == 2

    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert (tmp_path / "page.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.jsonl"]


def test_pytest_htmls_cells_are_escaped_and_line_up_with_their_headings():
    """As many cells as headings, also for a row without a record; hostile values stay text."""
    headings, cells, bare = ["<th>", "<th>"], ["<td>", "<td>"], ["<td>", "<td>"]
    told = {"fsdp_record": row(HOSTILE, ratio=0.5), "user_properties": [("backend", HOSTILE)]}
    report = type("Report", (), told)()

    columns.pytest_html_results_table_header(headings)
    columns.pytest_html_results_table_row(report, cells)
    columns.pytest_html_results_table_row(object(), bare)

    assert len(headings) == len(cells) == len(bare) == 8
    assert [tag for tag, _ in Parsed("".join(cells[1:7])).tags] == ["td"] * 6
    assert '<td class="col-parity">0.5</td>' in cells
    assert '<td class="col-verdict"></td>' in bare


def test_pytest_htmls_extras_hold_the_record_and_the_line_that_reproduces_it():
    """The record as JSON, and the reproduction line where there is one."""
    assert [extra["name"] for extra in extras_of(row())] == ["Record"]

    record, line = extras_of(row(reproduce="pytest x"))
    assert Record.from_json(record["content"]) == row(reproduce="pytest x")
    assert line["content"] == "pytest x"


def test_pytest_htmls_own_report_carries_the_columns(pytester):
    """A run with pytest-html and our columns writes a report with title, headings, parity cell and links."""
    pytester.makepyfile("def test_it(): pass")
    record = row("a", ratio=0.25, reproduce="pytest x")

    class Attach:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item, call):
            report = yield
            if call.when == "call":
                report.fsdp_record = record
                report.extras = [*getattr(report, "extras", []), *extras_of(record)]
            return report

    result = pytester.runpytest_inprocess("--html=report.html", "--self-contained-html", plugins=[columns, Attach()])

    result.assert_outcomes(passed=1)
    parsed = Parsed((pytester.path / "report.html").read_text(encoding="utf-8"))
    blob = next(attrs["data-jsonblob"] for _, attrs in parsed.tags if "data-jsonblob" in attrs)
    [[test]] = json.loads(blob or "")["tests"].values()
    cells = "".join(test["resultsTableRow"])
    assert '<td class="col-parity">0.25</td><td class="col-verdict">pass</td>' in cells
    assert ">Record</a>" in cells
    assert ">Reproduce</a>" in cells
    assert [attrs.get("data-column-type") for tag, attrs in parsed.tags if tag == "th"][1:7] == [
        "requirement",
        "level",
        "world",
        "backend",
        "parity",
        "verdict",
    ]
