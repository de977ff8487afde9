"""The sample page, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.records.reader import Run, read_run
from harness.records.record import Verdict
from harness.report.page import render
from tests.browsing import Shown
from tests.browsing import browser as browser
from tests.report.report_samples import file_of, full_run, row

#: More than one row of a group, so that there is something to unfold.
ALIKE = [row(f"alike-{n}", Verdict.FAIL, cause="hung", nodeid=f"t.py::alike[{n}]") for n in range(2)]


def written(path: Path, *runs: Run) -> Path:
    """The page of these runs, as a file."""
    path.write_text(render(runs), encoding="utf-8")
    return path


@pytest.fixture(scope="package")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with everything."""
    run, folder = full_run(status=1), tmp_path_factory.mktemp("page")
    file = file_of(replace(run, records=[*run.records, *ALIKE]), folder / "run.jsonl")
    return written(folder / "page.html", read_run(file))


@pytest.fixture(scope="module")
def shown(browser: Any, path: Path) -> Iterator[Shown]:
    """That page in a tab that may use the clipboard."""
    context = browser.new_context(color_scheme="light")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield Shown(context.new_page(), path).watch()
    context.close()
