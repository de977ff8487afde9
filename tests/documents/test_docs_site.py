"""The docs are a site, and each link of a page leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.docs_site import build


def test_the_docs_are_a_site_without_broken_links(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Zensical finds no link to a page or heading that is not there; code that pages link to is a page."""
    status = build(tmp_path)
    assert status == 0, capfd.readouterr().err
    assert "fully_shard" in (tmp_path / "index.html").read_text("utf-8")
    for page in ("docs/vendors", "docs/results/index", "suites/oracle/unsharded.py", "harness/simulated/index"):
        assert (tmp_path / f"{page}.html").exists()


def test_broken_links_are_refused_and_leave_the_site_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is printed names the page and the line of each: to a page, to code, to a heading."""
    (tmp_path / "index.html").write_text("before")
    assert build(tmp_path, {"README.md": "# Docs\n[a](no.md)\n[b](no.py)\n[c](docs/tour.md#no)\n"}) != 0
    printed = capfd.readouterr().err
    assert [f"README.md:{line}:" in printed for line in (1, 2, 3, 4)] == [False, True, True, True]
    assert (tmp_path / "index.html").read_text() == "before"
