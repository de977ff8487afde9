"""Pages in a real browser.

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
from axe_playwright_python.sync_playwright import Axe

from tests.patience import GUARD

#: How long the browser may take for one thing, in milliseconds.
PATIENT = 1000 * GUARD
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Text beyond the side of the window that nothing scrolls to.
CUT_OFF = """(width) => [...document.querySelectorAll("body *")]
  .filter(one => one.checkVisibility() && !one.closest(".scroll, .wide, .unseen, .skip, svg, thead, pre"))
  .filter(one => one.getBoundingClientRect().right > width + 1)
  .map(one => `${one.tagName} ${one.className}`)"""


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


def offences(tab: Any) -> list[Any]:
    """The rules of axe-core, the usual checker of accessibility, that what is shown breaks, and where."""
    found = Axe().run(tab).response
    assert found["passes"]
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in found["violations"]]
