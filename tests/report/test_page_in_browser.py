"""The page in a real browser: panels, filters, folds, links, copy buttons and print; nothing gets in or out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from harness.records.reader import read_run
from harness.records.record import Verdict
from tests.browsing import Shown
from tests.report.conftest import written
from tests.report.report_samples import HOSTILE, full_run, row, run_of
from tests.untrusted.strategies import poisoned
from tests.untrusted.test_records import DOCUMENTS, FIXED


def test_every_panel_is_there_and_the_page_asks_for_nothing(shown: Shown) -> None:
    """Each panel has its heading; the one request is for the file itself, and the console is silent."""
    headings = shown.tab.get_by_role("heading", level=2).all_text_contents()
    assert headings == [
        "Results", "Failures", "Numerical differences", "Losses by step", "Combinations", "Flaky", "Requirements",
        "Unproven", "Claims", "Waivers", "Environment", "Run it again",
        "What this page does not prove",
    ]  # fmt: skip
    assert shown.did == [f"request {shown.path.as_uri()}"]


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


def test_the_filter_is_in_the_address(shown: Shown) -> None:
    """Words, level, world, chapter and verdicts are kept in the address, and a page opened with it has them again."""
    tab = shown.tab
    tab.get_by_label("Find").fill("rule fail")
    tab.get_by_label("Level").select_option("must")
    tab.get_by_label("World").select_option("threads")
    tab.get_by_label("Chapter").select_option("sharding")
    tab.get_by_label("waived", exact=True).uncheck()
    words = tab.locator("#shown").inner_text()
    assert words == "3 of 9 shown"
    address = shown.all("location.search")
    assert set(address[1:].split("&")) == {
        "find=rule+fail", "level=must", "world=threads", "chapter=sharding",
        "verdict=pass", "verdict=fail", "verdict=not_claimed", "verdict=unproven",
    }  # fmt: skip
    tab.goto(shown.path.as_uri() + address)
    assert tab.locator("#shown").inner_text() == words
    assert tab.get_by_label("Chapter").input_value() == "sharding"
    tab.get_by_label("World").select_option("processes")
    assert tab.locator("#shown").inner_text().startswith("0 of ")
    tab.goto(shown.path.as_uri())
    assert tab.locator("tr.row:not([hidden])").count() == tab.locator("tr.row").count()
    shown.did[:] = shown.did[:1]


def test_what_passes_is_folded(browser: Any, tmp_path: Path) -> None:
    """Requirements that pass show when their chapter is pressed, searched or linked to; those that fail, always."""
    run = run_of(row("a"), row("b", Verdict.FAIL), row("c", chapter="parity"), status=1)
    page = written(tmp_path / "page.html", run)
    tab = browser.new_page()
    tab.goto(page.as_uri())
    rows = [tab.locator(f"#req-sharding-{name}") for name in "abc"]
    head = tab.get_by_role("button", name="All requirements of sharding")

    def shown() -> list[bool]:
        return [one.is_visible() for one in rows]

    assert (shown(), head.get_attribute("aria-expanded")) == ([False, True, False], "false")
    head.click()
    assert (shown(), head.get_attribute("aria-expanded")) == ([True, True, False], "true")
    head.click()
    assert shown() == [False, True, False]
    tab.get_by_label("Find").fill("sharding/a")
    assert shown() == [True, False, False]
    tab.goto(page.as_uri() + "#req-sharding-c")
    assert shown() == [False, True, True]
    tab.close()


def test_every_result_has_a_link_to_copy(shown: Shown) -> None:
    """Each failing result and each requirement has one; pressed, it is the address of the page and on the clipboard."""
    results = shown.all(
        "[...document.querySelectorAll('.first, .other[id], .more > li[id], tr.row')].map(one => one.id)"
    )
    links = shown.all("[...document.querySelectorAll('a.link')].map(one => one.hash.slice(1))")
    assert sorted(links) == sorted(results)
    shown.tab.locator("#req-sharding-FAIL a.link").click()
    shown.tab.get_by_text("Link copied").wait_for(state="attached")
    assert shown.all("location.href") == shown.all("navigator.clipboard.readText()")
    assert shown.all("location.hash").startswith("#req-sharding-")


def test_the_strip_leads_to_the_first_failure(shown: Shown) -> None:
    """The result that the verdict names as the first is where its link leads."""
    link = shown.tab.get_by_role("link", name="To the first failure")
    assert shown.tab.locator(link.get_attribute("href")).get_by_text("sharding/FAIL").count()


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
    folded = shown.tab.locator("details.other[id]").first
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
    issue = "https://github.com/acme/chip/issues/7"
    inside = f"link.href.startsWith(location.href.split('#')[0] + '#') || link.download || link.href === '{issue}'"
    assert hostile.all(f"[...document.links].filter(link => !({inside})).length") == 0
    assert hostile.all("document.body.textContent.includes('<script>alert(1)</script>')")
    context.close()
