"""The page in a real browser: panels, filters, copy buttons, keyboard, print and both themes; nothing gets in or out.

The browser is the Chromium of the machine, which playwright drives; none is downloaded. Without one these tests are
skipped, since there is nothing to ask.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.records.reader import Run, read_run
from harness.records.record import Verdict
from harness.report.page import render
from tests.patience import GUARD
from tests.report.report_samples import HOSTILE, file_of, full_run, row
from tests.untrusted.strategies import poisoned
from tests.untrusted.test_records import DOCUMENTS, FIXED

#: How long the browser may take for one thing, in milliseconds.
PATIENT = 1000 * GUARD
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: More than one row of a group, so that there is something to unfold.
ALIKE = [row(f"alike-{n}", Verdict.FAIL, cause="hung", nodeid=f"t.py::alike[{n}]") for n in range(2)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The machine's Chromium, started once."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
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


@pytest.fixture(scope="module")
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


def test_every_panel_is_there_and_the_page_asks_for_nothing(shown: Shown) -> None:
    """Each panel has its heading; the one request is for the file itself, and the console is silent."""
    headings = shown.tab.get_by_role("heading", level=2).all_text_contents()
    assert headings == [
        "Results", "Numerical differences", "Losses by step", "Combinations", "Failures", "Flaky", "Requirements",
        "Unproven", "Claims", "Waivers", "Environment", "Run it again",
        "What this page does not prove",
    ]  # fmt: skip
    assert shown.did == [f"request {shown.path.as_uri()}"]


def test_headings_go_down_by_one(shown: Shown) -> None:
    """A screen reader that goes by headings meets one h1, and no level is left out on the way down."""
    levels = shown.all("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(one => +one.tagName[1])")
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_filters_show_what_they_say(shown: Shown) -> None:
    """Words and verdicts narrow the table together, the count says how far, and emptied filters show all again."""
    find, count = shown.tab.get_by_label("Find"), shown.tab.locator("#shown")
    rows = shown.tab.locator("tr.row:not([hidden])")
    many = rows.count()
    find.fill("sharding alike")
    assert (rows.count(), count.inner_text()) == (2, f"2 of {many} shown")
    find.fill("")
    shown.tab.get_by_label("fail", exact=True).uncheck()
    assert rows.count() == many - 4
    shown.tab.get_by_label("fail", exact=True).check()
    assert rows.count() == many
    find.fill("no such thing")
    assert shown.tab.locator("table.requirements tbody:not([hidden])").count() == 0
    find.fill("")


def test_copy_buttons_copy(shown: Shown) -> None:
    """Each of the three forms reaches the clipboard as it stands, and the button says so, also to a screen reader."""
    forms = shown.tab.locator("#run-1-red-1 .forms .copyable")
    assert forms.count() == 3
    for one in forms.all():
        one.get_by_role("button").click()
        one.get_by_text("Copied").wait_for()
        assert shown.all("navigator.clipboard.readText()") == one.locator("code").text_content()
        assert shown.tab.locator("#copied").text_content() == "Copied"


def test_a_link_to_a_folded_row_unfolds_it(shown: Shown) -> None:
    """From the table to a row that is not the first of its group."""
    folded = shown.tab.locator("details.other").first
    assert folded.get_attribute("open") is None
    name = folded.get_attribute("id")
    shown.tab.locator(f"tr.row a[href='#{name}']").first.click()
    shown.tab.locator(f"details#{name}[open]").wait_for()


def test_files_can_be_saved(shown: Shown, tmp_path: Path) -> None:
    """The record file comes out of the page as it went in, under its name."""
    with shown.tab.expect_download() as saved:
        shown.tab.get_by_role("link", name="records (JSON, a line each)").click()
    assert saved.value.suggested_filename == "run.jsonl.gz"
    saved.value.save_as(tmp_path / "saved.gz")
    assert gzip.decompress((tmp_path / "saved.gz").read_bytes()) == shown.path.with_name("run.jsonl").read_bytes()


def test_the_keyboard_reaches_everything_and_what_has_the_focus_is_seen(shown: Shown) -> None:
    """Tab goes first to the link past the head, then to every control, each with a name and a frame around it."""
    shown.tab.goto(shown.path.as_uri())
    wanted = shown.all(f"[...document.querySelectorAll({REACHABLE!r})].filter(one => one.checkVisibility()).length")
    reached = []
    for _ in range(wanted):
        shown.tab.keyboard.press("Tab")
        reached.append(shown.all(FOCUSED))
    assert reached[0]["name"] == "Skip to the verdict"
    assert len({one["place"] for one in reached}) == wanted
    assert [one for one in reached if not one["name"] or one["frame"] == "none"] == []


REACHABLE = "a[href], button, input, summary, [tabindex]"
FOCUSED = f"""(() => {{
  const one = document.activeElement;
  const labels = one.labels ? [...one.labels].map(label => label.textContent).join() : "";
  return {{
    place: [...document.querySelectorAll({REACHABLE!r})].indexOf(one),
    name: (one.ariaLabel || one.getAttribute("aria-labelledby") || labels || one.textContent).trim(),
    frame: getComputedStyle(one).outlineStyle,
  }};
}})()"""

#: Text that is shown with less contrast to what is behind it than 4.5 to 1, as WCAG 2 has it.
PALE = """(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const straight = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * straight(r / 255) + 0.7152 * straight(g / 255) + 0.0722 * straight(b / 255);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const own = (one) => [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const texts = [...document.querySelectorAll("body *")]
    .filter(one => own(one) && one.checkVisibility() && !one.closest("svg, .unseen, .skip"));
  return texts.map(one => {
    const [a, b] = [light(rgb(getComputedStyle(one).color)), light(behind(one))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.className, one.textContent.slice(0, 40)];
  }).filter(([contrast]) => contrast < 4.5);
})()"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read_in_both_themes(shown: Shown, theme: str) -> None:
    """The theme is the reader's, and in both every text stands out from what is behind it."""
    shown.tab.emulate_media(color_scheme=theme)
    ground = shown.all("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(14, 19, 24)") == (theme == "dark")
    assert shown.all(PALE) == []
    shown.all(
        "document.querySelector('h1').style.color = getComputedStyle(document.querySelector('.tag')).backgroundColor"
    )
    assert [text for _, _, text in shown.all(PALE)] == ["torch 2.13 on gloo"]
    shown.all("document.querySelector('h1').style.color = ''")


def test_on_paper_everything_is_unfolded_and_what_cannot_be_pressed_is_gone(shown: Shown) -> None:
    """Printed, the page has all its text and no controls; afterwards it is as it was."""
    folded = "document.querySelectorAll('details:not([open])').length"
    before = shown.all(folded)
    shown.tab.emulate_media(media="print")
    shown.all("dispatchEvent(new Event('beforeprint'))")
    assert shown.all(folded) == 0
    assert shown.tab.locator("nav:visible, button:visible, form:visible").count() == 0
    assert shown.tab.get_by_text("tb-lines").is_visible()
    shown.all("dispatchEvent(new Event('afterprint'))")
    shown.tab.emulate_media(media="screen")
    assert shown.all(folded) == before > 0


def test_without_javascript_all_is_there_but_for_the_buttons(browser: Any, path: Path) -> None:
    """Verdict, pictures, failures and table can be read, folded parts opened; what would not work is not shown."""
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(path.as_uri())
    assert tab.get_by_text("DOES NOT CONFORM").is_visible()
    tab.locator("table.requirements tr.row").last.scroll_into_view_if_needed()
    assert tab.locator("table.requirements tr.row").last.is_visible()
    assert tab.locator("button:visible, form:visible").count() == 0
    tab.get_by_text("The failing case as JSON").click()
    assert tab.get_by_text('"seed": 77').is_visible()
    context.close()


def test_a_cell_of_the_matrix_opens_its_values_without_javascript(browser: Any, path: Path) -> None:
    """The table of two dimensions shows below the matrix when its cell is pressed, and is gone when it is closed."""
    context = browser.new_context(java_script_enabled=False, viewport={"width": 400, "height": 800})
    tab = context.new_page()
    tab.goto(path.as_uri())
    assert tab.locator(".values:visible").count() == 0
    tab.locator("#run-1-matrix td a").nth(1).click()
    [table] = tab.locator(".values:visible").all()
    assert "mesh and net" in table.inner_text()
    assert table.get_by_title("impossible: norms need two").is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    table.get_by_role("link", name="close").click()
    assert tab.locator(".values:visible").count() == 0
    context.close()


def test_a_hostile_record_runs_nothing_and_adds_nothing(browser: Any, tmp_path: Path) -> None:
    """With markup in every string of two runs the browser shows text, and there is no script, image or request."""
    lines = [json.dumps(poisoned(line, lambda: HOSTILE, FIXED)) for line in DOCUMENTS]
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    page = written(tmp_path / "page.html", read_run(tmp_path / "run.jsonl"), full_run(status=1))
    context = browser.new_context()
    hostile = Shown(context.new_page(), page).watch()
    hostile.all("window.scrollTo(0, document.body.scrollHeight)")
    assert hostile.did == [f"request {page.as_uri()}"]
    assert hostile.all("[document.scripts.length, document.images.length, document.links.length > 0]") == [1, 0, True]
    inside = "link.href.startsWith(location.href.split('#')[0] + '#') || link.download"
    assert hostile.all(f"[...document.links].filter(link => !({inside})).length") == 0
    assert hostile.all("document.body.textContent.includes('<script>alert(1)</script>')")
    context.close()
