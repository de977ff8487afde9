"""The page in a real browser, for all readers: by keyboard and screen reader, in both themes, on narrow screens."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import CUT_OFF, Shown, offences


@pytest.mark.parametrize("width", [1200, 400])
def test_axe_finds_nothing(browser: Any, path: Path, width: int) -> None:
    """No rule is broken, folded parts open, wide or narrow."""
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert offences(tab) == []
    tab.close()


@pytest.mark.parametrize("width", [1200, 400])
def test_nothing_is_cut_off_at_the_side(browser: Any, path: Path, width: int) -> None:
    """The page is as wide as the window, and so is all in it that cannot be moved sideways."""
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CUT_OFF, width) == []
    tab.close()


def test_a_screenshot_of_the_whole_page_has_every_panel(shown: Shown) -> None:
    """Nothing waits to be scrolled to before it is drawn: each panel has its own height from the beginning."""
    hidden = (
        "[...document.querySelectorAll('main *')].filter(one => getComputedStyle(one).contentVisibility !== 'visible')"
    )
    assert shown.all(f"{hidden}.length") == 0


def test_headings_go_down_by_one(shown: Shown) -> None:
    """A screen reader that goes by headings meets one h1, and no level is left out on the way down."""
    levels = shown.all("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(one => +one.tagName[1])")
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


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


REACHABLE = "a[href], button, input, select, summary, [tabindex]"
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
