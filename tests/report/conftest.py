"""Pages in a real browser, for the tests of the page.

The browser is the Chromium of the machine, which playwright drives; none is downloaded. Without one these tests are
skipped, since there is nothing to ask.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.records.reader import Run, read_run
from harness.records.record import Verdict
from harness.report.page import render
from tests.patience import GUARD
from tests.report.report_samples import file_of, full_run, row

#: How long the browser may take for one thing, in milliseconds.
PATIENT = 1000 * GUARD
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: More than one row of a group, so that there is something to unfold.
ALIKE = [row(f"alike-{n}", Verdict.FAIL, cause="hung", nodeid=f"t.py::alike[{n}]") for n in range(2)]


def chromium() -> str | None:
    """The machine's Chromium, if it has one."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The machine's Chromium, started once."""
    program = chromium()
    if program is None:
        pytest.skip(
            f"no Chromium on this machine (looked for {', '.join(CHROMIUM)}): the page is not tried in a browser"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENT)
        yield started
        started.close()


@dataclass
class Shown:
    """A page in the browser, the file it is, and what it did: requests, words on the console, dialogs."""

    tab: Any
    path: Path
    did: list[str] = field(default_factory=list)

    def watch(self) -> Shown:
        """Open the page, and note what it does from its first byte on."""
        self.tab.set_default_timeout(PATIENT)
        self.tab.on("request", lambda request: self.did.append(f"request {request.url}"))
        self.tab.on("console", lambda message: self.did.append(f"console {message.text}"))
        self.tab.on("pageerror", lambda error: self.did.append(f"error {error}"))
        self.tab.on("dialog", lambda dialog: (self.did.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.tab.goto(self.path.as_uri())
        return self

    def all(self, expression: str) -> Any:
        """What JavaScript says of the page."""
        return self.tab.evaluate(expression)


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
