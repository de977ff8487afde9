"""What a subject says, wherever a run shows it: terminal, record, page, pytest-html, JUnit. It is text, and no more."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.data.text import visible
from harness.records.reader import read_run
from harness.records.record import Verdict
from harness.report.page import render
from tests.patience import GUARD
from tests.report.report_samples import Parsed
from tests.test_layering import ROOT
from tests.untrusted.test_records import check_own

HERE = "tests/untrusted/hostile_samples.py"
SUBJECT = [
    "--implementation",
    "tests.untrusted.hostile_samples:implementation",
    "--backend",
    "tests.untrusted.hostile_samples:backend",
]
VERDICTS = {
    "raises": Verdict.FAIL, "returns": Verdict.FAIL, "holds": Verdict.FAIL, "leaves": Verdict.FAIL,
    "known": Verdict.WAIVED, "unclaimed": Verdict.NOT_CLAIMED, "limited": Verdict.NOT_RUN,
}  # fmt: skip


def pytest_run(*args: str) -> str:
    """What a run of the samples prints."""
    command = [sys.executable, "-m", "pytest", HERE, *SUBJECT, "-p", "no:cacheprovider", "--color=no", *args]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=GUARD, check=False)
    return (ended.stdout + ended.stderr).decode("utf-8")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A whole run with every report there is: what it printed, and the folder of its files."""
    from tests.untrusted.hostile_samples import WAIVERS

    there = tmp_path_factory.mktemp("hostile")
    (there / "waivers.toml").write_text(WAIVERS, encoding="utf-8")
    files = ["--waivers", "waivers.toml", "--record", "record.jsonl", "--html", "page.html", "--junitxml", "junit.xml"]
    paths = [str(there / word) if "." in word else word for word in files]
    return pytest_run("--world", "threads", "-rA", "-vv", "--self-contained-html", *paths), there


def test_the_terminal_is_steered_by_nobody(shown: tuple[str, Path]) -> None:
    """Tracebacks, summaries, sections and problems hold what the subject says, and nothing that is not visible."""
    text = shown[0]
    assert visible(text) == text
    for words in ("hostile/raises", "onerror=alert(1)", "␛]0;owned␇", "waived: javascript:", "matches no requirement"):
        assert words in text


def test_the_record_and_the_page_have_it_as_text(shown: tuple[str, Path]) -> None:
    """Each row ended as it must, the record is read back without damage, and the page has no markup but its own."""
    run = read_run(shown[1] / "record.jsonl")
    assert run.damage == []
    assert {record.requirement.partition("/")[2]: record.verdict for record in run.records} == VERDICTS
    page = render([run])
    check_own(page)
    assert "<script>alert(1)</script>" in Parsed(page).text


def test_pytest_htmls_page_has_it_as_text(shown: tuple[str, Path]) -> None:
    """In pytest-html's report, cells and logs are text in elements of ours, and links lead to JSON and plain text."""
    page = Parsed((shown[1] / "page.html").read_text(encoding="utf-8"))
    (blob,) = [attrs["data-jsonblob"] for _, attrs in page.tags if "data-jsonblob" in attrs]
    assert not [value for _, attrs in page.tags for value in attrs.values() if value != blob and "alert" in str(value)]
    tests = [test for several in json.loads(blob or "")["tests"].values() for test in several]
    assert len(tests) == len(VERDICTS)
    for test in tests:
        assert Parsed(test["log"]).tags == []
        cells = [Parsed(cell).tags for cell in test["resultsTableRow"]]
        assert [[tag for tag, _ in cell] for cell in cells[1:7]] == [["td"]] * 6
        kinds = {extra["name"]: extra["content"].partition(";")[0] for extra in test["extras"]}
        assert kinds == {"Record": "data:application/json", "Reproduce": "data:text/plain"}
        assert all(visible(text) == text for text in map(_extra, test["extras"]))


def _extra(extra: dict[str, Any]) -> str:
    return base64.b64decode(extra["content"].partition("base64,")[2]).decode("utf-8")


def test_junits_file_has_it_as_text(shown: tuple[str, Path]) -> None:
    """The JUnit file is XML whose elements are pytest's."""
    tags = {element.tag for element in ElementTree.parse(shown[1] / "junit.xml").iter()}
    known = {"testsuites", "testsuite", "testcase", "properties", "property", "failure", "skipped", "system-out"}
    assert tags <= known | {"system-err"}


def test_a_worker_sends_whatever_a_subject_says(tmp_path: Path) -> None:
    """By a worker of pytest-xdist, too, rows with texts that are no UTF-8 are reported and recorded."""
    record = tmp_path / "record.jsonl"
    few = ["--world", "threads", "-k", "sentence or possible", "--numprocesses", "1"]
    text = pytest_run(*few, "--record", str(record))
    assert visible(text) == text
    run = read_run(record)
    found = {row.requirement.partition("/")[2]: row.verdict for row in run.records}
    assert found == {name: VERDICTS[name] for name in ("holds", "limited")}, text
    assert run.damage == []
