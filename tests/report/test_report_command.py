"""The command that makes the page."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harness.records.record import Verdict
from harness.report import __main__ as command
from tests.report.report_samples import file_of, row, run_of


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
