"""A site in a real browser: what it filters, and that all readers can use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.site.build import build
from harness.site.history import histories_of
from tests.browsing import CUT_OFF, Shown, offences
from tests.site.test_site import run_of

PAGES = ("index.html", "subjects/torch-on-gloo.html")
OLD = {"implementation": "torch 2.9.1", "environment": {"torch": "2.9.1"}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two subjects, one of them in two versions."""
    runs = run_of(), run_of(OLD, off="pass"), run_of({"implementation": "other 1.0"}, off="pass")
    build(histories_of(runs), folder := tmp_path_factory.mktemp("site"))
    return folder


@pytest.fixture
def shown(browser: Any, site: Path) -> Iterator[Shown]:
    """The first page in a tab."""
    context = browser.new_context(color_scheme="light")
    yield Shown(context.new_page(), site / "index.html").watch()
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_and_nothing_is_cut_off(browser: Any, site: Path, page: str, width: int, theme: str) -> None:
    """No rule is broken, folded parts open, wide or narrow, light or dark."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    tab.goto((site / page).as_uri())
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert offences(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CUT_OFF, width) == []
    tab.close()


def test_what_is_filtered_is_kept_in_the_address(shown: Shown) -> None:
    """Of one subject, chapters in which it fails; opened anew, the address shows the same."""
    shown.tab.check("input[name=failing]")
    assert visible(shown) == (["parity"], ["other on gloo", "torch on gloo"])
    shown.tab.fill("input[name=subjects]", "other")
    seen = visible(shown)
    assert seen == ([], ["other on gloo"])
    shown.tab.goto(shown.tab.url)
    assert "failing=1" in shown.tab.url
    assert visible(shown) == seen


def visible(shown: Shown) -> tuple[list[str], list[str]]:
    """The chapters and the subjects that can be seen."""
    rows = "[...document.querySelectorAll('tbody tr[data-text]')].filter(one => !one.hidden)"
    columns = "[...document.querySelectorAll('thead th[data-text]')].filter(one => !one.hidden)"
    names = f"{columns}.map(one => one.querySelector('a').textContent)"
    return shown.all(f"{rows}.map(one => one.dataset.text)"), shown.all(names)


def test_a_cell_leads_to_its_chapter_and_a_run_to_its_page(shown: Shown, site: Path) -> None:
    """The chapter of the subject's page is unfolded; no page asks for anything from elsewhere, or complains."""
    shown.tab.click("tr[data-text=parity] td.v-fail a")
    assert shown.all("document.querySelector(decodeURIComponent(location.hash)).closest('details').open")
    shown.tab.click("tbody tr[id^=run-] >> nth=0 >> th a")
    assert "torch 2.13" in shown.all("document.querySelector('h1').textContent")
    own = f"request {site.as_uri()}/"
    assert [each for each in shown.did if not each.startswith(own)] == []
