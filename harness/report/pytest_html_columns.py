"""The parity columns of pytest-html's own report: Requirement, World, Parity (worst ÷ allowed) and Verdict.

pytest-html puts cells into its page as they are, so every value is escaped here. This module is a plugin; its hooks
are optional, so it does no harm without pytest-html. Register it where pytest-html is::

    if config.pluginmanager.hasplugin("html"):
        config.pluginmanager.register(pytest_html_columns, "fsdp-conformance-html")

A ``TestReport`` that carries ``fsdp_record`` fills the columns; the other rows get empty cells. Links to the record and
to the line that reproduces it are ``extras_of(record)``, to be appended to ``report.extras`` in a
``pytest_runtest_makereport`` wrapper.
"""

from __future__ import annotations

import importlib
from html import escape
from typing import Any

import pytest

from harness.report.text import ratio_text, visible
from harness.verdict import Record

TITLE = "FSDP conformance"

_AT = 1  # behind pytest-html's own "Result"
_COLUMNS = ("requirement", "world", "parity", "verdict")


@pytest.hookimpl(optionalhook=True)
def pytest_html_report_title(report: Any) -> None:
    """Name the report."""
    report.title = TITLE


@pytest.hookimpl(optionalhook=True)
def pytest_html_results_table_header(cells: list[str]) -> None:
    """Add the four headings."""
    cells[_AT:_AT] = [_heading(name) for name in _COLUMNS]


@pytest.hookimpl(optionalhook=True)
def pytest_html_results_table_row(report: Any, cells: list[str]) -> None:
    """Add the four cells, empty where the report carries no record. No cells: another plugin dropped the row."""
    if cells:
        record: Record | None = getattr(report, "fsdp_record", None)
        cells[_AT:_AT] = [_cell(name, value) for name, value in zip(_COLUMNS, _values(record), strict=True)]


def extras_of(record: Record) -> list[dict[str, Any]]:
    """What pytest-html links to from a row: the record as JSON, and the line that reproduces it if there is one."""
    extras = importlib.import_module("pytest_html.extras")
    found = [extras.json(record.as_json(), name="Record")]
    if record.reproduce:
        found.append(extras.text(visible(record.reproduce), name="Reproduce"))
    return found


def _values(record: Record | None) -> tuple[str, str, str, str]:
    if record is None:
        return "", "", "", ""
    parity = "" if record.ratio is None else ratio_text(record.ratio)
    return record.requirement, record.world, parity, str(record.verdict)


def _heading(name: str) -> str:
    # Not sortable by parity: pytest-html sorts cells as text, where 1.6e+06 stands before 2.
    sortable = "" if name == "parity" else 'class="sortable" '
    return f'<th {sortable}data-column-type="{name}">{name.capitalize()}</th>'


def _cell(name: str, value: str) -> str:
    return f'<td class="col-{name}">{escape(visible(value))}</td>'
