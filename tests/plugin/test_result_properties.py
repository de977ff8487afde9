"""Results in pytest's own reports: properties in the JUnit file, and columns in the page, of what a worker sends."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import convert

from harness.data.text import ratio_text
from harness.pytest_plugin import html_columns
from harness.records.reader import Run
from harness.records.record import Record, Verdict
from tests.plugin.test_plugin import samples_run
from tests.report.report_samples import Parsed, row

#: Samples of every verdict, without those that take their time to hang or crash.
SOME = "not hang and not hung and not crash and not leave"
WORKER = ("--numprocesses", "1", "--world", "threads")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """The samples' records, and the folder of their reports."""
    there = tmp_path_factory.mktemp("properties")
    files = ["--junitxml", str(there / "junit.xml"), "--html", str(there / "page.html"), "--self-contained-html"]
    return samples_run(there, "-k", SOME, *files, *WORKER)[1], there


def test_the_samples_have_every_verdict(ran: tuple[Run, Path]) -> None:
    """The samples below cover every verdict, and results with numbers."""
    assert {record.verdict for record in ran[0].records} == set(Verdict)
    assert any(record.ratio is not None for record in ran[0].records)


def test_junits_file_says_what_each_result_is_about(ran: tuple[Run, Path]) -> None:
    """Each test case has requirement, level, world, verdict, implementation and backend once, and worst ÷ allowed."""
    run, there = ran
    cases = list(ElementTree.parse(there / "junit.xml").iter("testcase"))
    found = [[(p.get("name"), p.get("value")) for p in case.iter("property")] for case in cases]
    expected = [
        [
            ("requirement", record.requirement),
            ("level", record.level),
            ("world", record.world),
            ("verdict", str(record.verdict)),
            ("implementation", "sample"),
            ("backend", "small"),
            *([] if record.ratio is None else [("worst/allowed", ratio_text(record.ratio))]),
        ]
        for record in run.records
    ]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_pytest_htmls_page_has_a_column_for_each(ran: tuple[Run, Path]) -> None:
    """Requirement, level, world, backend, worst ÷ allowed and verdict follow pytest-html's own result; then links."""
    run, there = ran
    page = Parsed((there / "page.html").read_text(encoding="utf-8"))
    (blob,) = [attrs["data-jsonblob"] for _, attrs in page.tags if "data-jsonblob" in attrs]
    columns = ["requirement", "level", "world", "backend", "parity", "verdict"]
    assert [attrs.get("data-column-type") for tag, attrs in page.tags if tag == "th"][1:7] == columns
    rows = [test["resultsTableRow"] for several in json.loads(blob or "")["tests"].values() for test in several]
    assert all(">Record</a>" in row[-1] and ">Reproduce</a>" in row[-1] for row in rows)
    cells = {tuple(Parsed(cell).text for cell in row[1:7]) for row in rows}
    assert cells == {
        (
            record.requirement,
            record.level,
            record.world,
            "small",
            "" if record.ratio is None else ratio_text(record.ratio),
            str(record.verdict),
        )
        for record in run.records
    }


def test_other_tests_have_empty_cells_in_pytest_htmls_page() -> None:
    """As many cells as headings, also for a test that is no requirement."""
    headings, cells = ["<th>", "<th>"], ["<td>", "<td>"]
    html_columns.pytest_html_results_table_header(headings)
    html_columns.pytest_html_results_table_row(object(), cells)
    assert len(headings) == len(cells) == 8
    assert '<td class="col-verdict"></td>' in cells


def test_links_in_pytest_htmls_page_hold_the_record_and_the_line_that_reproduces_it() -> None:
    """The record as JSON, and the reproduction line if there is one."""
    assert [extra["name"] for extra in html_columns.extras_of(row())] == ["Record"]
    record, line = html_columns.extras_of(row(reproduce="pytest x"))
    assert convert(record["content"], Record) == row(reproduce="pytest x")
    assert line["content"] == "pytest x"
