"""The command that makes the page."""

from __future__ import annotations

import os

from harness.records.record import Verdict
from harness.report import __main__ as command
from tests.report.report_samples import file_of, row, run_of


def test_the_command_writes_the_page_and_says_where_the_subject_stands(tmp_path, capsys):
    """Standing and the page's link are printed; it is there; nothing else is left beside it; the exit code is 0."""
    record = file_of(run_of(row("a", Verdict.FAIL), status=1), tmp_path / "run.jsonl")

    assert command.main([str(record), "-o", str(tmp_path / "page.html")]) == 0

    said = capsys.readouterr().out
    assert said.splitlines()[-1] == f"file://{tmp_path}/page.html"
    assert "torch 2.13 on gloo: DOES NOT CONFORM: 1 MUST result fails; first sharding/a in threads" in said
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.jsonl"]


def test_without_an_output_the_page_is_beside_the_first_record_file(tmp_path):
    """Several record files make one page, named after the first."""
    first = file_of(run_of(row("a")), tmp_path / "mine.jsonl")
    second = file_of(run_of(row("a")), tmp_path / "theirs.jsonl")

    assert command.main([str(first), str(second)]) == 0
    assert "2 runs side by side" in (tmp_path / "mine.html").read_text(encoding="utf-8")


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
