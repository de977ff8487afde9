"""Columns for pytest-html's report: requirement, level, world, backend, worst ÷ allowed, verdict.

    Requirement        Level   World     Backend   Worst ÷ allowed   Verdict
    sharding/layout    must    threads   gloo      0.37              pass

pytest-html inserts cells as HTML, so every value is escaped here. Tests that are no requirement get empty cells.
"""

from __future__ import annotations

import importlib
from html import escape
from typing import Any

import pytest

from harness.data.text import ratio_text, visible
from harness.records.record import Record

TITLE = "FSDP conformance"

_AT = 1  # behind pytest-html's own "Result"
_COLUMNS = {
    "requirement": "Requirement",
    "level": "Level",
    "world": "World",
    "backend": "Backend",
    "parity": "Worst ÷ allowed",
    "verdict": "Verdict",
}


@pytest.hookimpl(optionalhook=True)
def pytest_html_report_title(report: Any) -> None:
    """Name the report."""
    report.title = TITLE


@pytest.hookimpl(optionalhook=True)
def pytest_html_results_table_header(cells: list[str]) -> None:
    """Add the headings."""
    cells[_AT:_AT] = [_heading(name) for name in _COLUMNS]


@pytest.hookimpl(optionalhook=True)
def pytest_html_results_table_row(report: Any, cells: list[str]) -> None:
    """Add the cells, empty where the report carries no record. No cells: another plugin dropped the row."""
    if cells:
        cells[_AT:_AT] = [_cell(name, value) for name, value in zip(_COLUMNS, _values(report), strict=True)]


def extras_of(record: Record) -> list[dict[str, Any]]:
    """The links of a row in pytest-html's table: the record as JSON, and the reproduction line if there is one."""
    extras = importlib.import_module("pytest_html.extras")
    found = [extras.json(record.as_json(), name="Record")]
    if record.reproduce:
        found.append(extras.text(visible(record.reproduce), name="Reproduce"))
    return found


def _values(report: Any) -> tuple[str, ...]:
    record: Record | None = getattr(report, "fsdp_record", None)
    if record is None:
        return ("",) * len(_COLUMNS)
    parity = "" if record.ratio is None else ratio_text(record.ratio)
    backend = str(dict(getattr(report, "user_properties", ())).get("backend", ""))
    return record.requirement, record.level, record.world, backend, parity, str(record.verdict)


def _heading(name: str) -> str:
    # Not sortable by parity: pytest-html sorts cells as text, where 1.6e+06 stands before 2.
    sortable = "" if name == "parity" else 'class="sortable" '
    return f'<th {sortable}data-column-type="{name}">{_COLUMNS[name]}</th>'


def _cell(name: str, value: str) -> str:
    return f'<td class="col-{name}">{escape(visible(value))}</td>'
