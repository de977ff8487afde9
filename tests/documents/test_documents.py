"""The tables in the docs are those of the suites as they stand, and links lead somewhere."""

from __future__ import annotations

import configparser
import re
from collections import Counter
from pathlib import Path

import pytest

from suites.catalogue import by_seed, entries, requirements
from tests import ROOT as ROOT

DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def test_the_table_of_requirements_is_fresh() -> None:
    """docs/requirements.md is what `python -m suites.catalogue requirements` prints now."""
    assert (DOCS / "requirements.md").read_text(encoding="utf-8").splitlines() == list(requirements())


def test_every_seed_row_is_required() -> None:
    """No seed row is without a requirement."""
    assert [row for row, members in by_seed().items() if not members] == []


def test_the_table_of_seed_rows_names_their_requirements() -> None:
    """docs/evidence/seed-coverage.md has every seed row with the ids of its requirements, and no failure."""
    table = (DOCS / "evidence/seed-coverage.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(): cells for line in table.splitlines() if len(cells := line.split("|")) > 5}
    for row, members in by_seed().items():
        assert re.findall(r"`([^`]+)`", rows[row][3]) == [member.id for member in members]
        assert "fail" not in "".join(rows[row][4:])
        assert "not there" not in "".join(rows[row][4:])


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: small letters, hyphens for blanks, and no punctuation."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each link within the project names a file that is there, and a heading of it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, heading = link.partition("#")
        if "://" not in link:
            there = (page.parent / name).resolve() if name else page
            assert there.exists(), link
            assert not heading or heading in anchors(there), link


def test_the_readme_counts_the_requirements_of_each_area() -> None:
    """As its table has them: ``training 53``; and all of them."""
    readme = (ROOT / "README.md").read_text("utf-8")
    counts = Counter(entry.module.split(".")[1] for entry in entries())
    assert {area: int(count) for area, count in re.findall(r"(?<=[|,]) (\w+) (\d+)(?= \||,)", readme)} == counts
    assert f"{sum(counts.values())} requirements answer" in readme


def test_the_readme_counts_the_scripts_of_defects() -> None:
    """Those of torch that are open, those that it has mended, and those of each library."""
    readme = (ROOT / "README.md").read_text("utf-8")
    torch = ROOT / "docs/evidence/torch"
    scripts = {folder.name: len(list(folder.glob("*.py"))) for folder in torch.iterdir() if folder.is_dir()}
    mended = scripts.pop("mended")
    assert f"{sum(scripts.values())} open in 2.13, {mended} of older versions" in readme
    for library in (ROOT / "docs/results/defects").iterdir():
        line = next(line for line in readme.splitlines() if f"defects/{library.name}/" in line)
        assert f"| {len(list(library.glob('*.py')))} |" in line


def test_the_second_half_of_our_tests_runs_whatever_becomes_of_the_first() -> None:
    """The README's test command is two commands of tox, which goes on after the first has failed, and fails then."""
    tox = configparser.RawConfigParser()
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    tests = tox["testenv:tests"]
    assert len(tests["commands"].split("\n")[1:]) == 2
    assert tests.getboolean("ignore_errors")


def test_each_panel_of_the_page_is_explained() -> None:
    """docs/reading-a-report.md has each heading of the page."""
    page = (ROOT / "harness/report/templates/page.html.j2").read_text(encoding="utf-8")
    explained = (DOCS / "reading-a-report.md").read_text(encoding="utf-8").lower()
    headings = re.findall(r"<h2[^>]*>([^<{]+)</h2>", page)
    assert len(headings) > 10
    assert [heading for heading in headings if heading.lower() not in explained] == []
