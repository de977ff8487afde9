"""The tables in the docs are those of the suites as they stand."""

from __future__ import annotations

import configparser
import re

from suites.catalogue import by_seed
from tests import ROOT as ROOT
from tests.documents.refresh import areas, refreshed

DOCS = ROOT / "docs"


def test_the_table_of_requirements_and_all_counts_are_fresh() -> None:
    """Those of requirements, in all and by area, world and ranks, and that of mutants."""
    stale = [str(path) for path, text in refreshed().items() if path.read_text("utf-8") != text]
    assert not stale, f"run `python -m tests.documents.refresh`, which writes {stale}"


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


def test_the_readme_names_no_other_areas() -> None:
    """In its table, which counts the requirements of each: ``training 53``."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert set(re.findall(r"(?<=[|,]) (\w+) \d+(?= \||,)", readme)) == set(areas())


def test_the_readme_counts_the_scripts_of_defects() -> None:
    """Those of torch that are open, those that it has mended, and those of each library."""
    readme = (ROOT / "README.md").read_text("utf-8")
    torch = ROOT / "docs/evidence/torch"
    scripts = {folder.name: len(list(folder.rglob("*.py"))) for folder in torch.iterdir() if folder.is_dir()}
    mended = scripts.pop("mended")
    assert f"{sum(scripts.values())} open in 2.15, {mended} mended since 2.11" in readme
    for library in (ROOT / "docs/results/defects").iterdir():
        line = next(line for line in readme.splitlines() if f"defects/{library.name}/" in line)
        assert f"| {len(list(library.rglob('*.py')))} |" in line


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
