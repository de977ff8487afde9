"""docs/results says what its summary says, and each script there still shows what it says of itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import GUARD
from tests.results.__main__ import FOLDER, causes
from tests.results.page import failures_of, page
from tests.results.summary import read

SUMMARIES, CAUSES = read(FOLDER / "summary.json"), causes()
SCRIPTS = sorted((FOLDER / "defects").rglob("*.py"))
#: Of libraries that come with torch; those of others run where these are installed.
RUN_HERE = [script for script in SCRIPTS if script.parent.name in ("ddp", "fsdp1")]
MOST_LINES = 40
OURS = re.compile(r"^\s*(?:import|from) (?:harness|suites|tests|examples|adapters|reference_models)\b", re.MULTILINE)


def test_the_page_is_made_of_the_summary_and_the_causes() -> None:
    """docs/results/README.md is what `python -m tests.results` writes now."""
    assert page(SUMMARIES, CAUSES) == (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("subject", sorted({one.subject for one in SUMMARIES}))
def test_every_failure_has_a_cause(subject: str) -> None:
    """Each requirement that a subject fails is of one cause, of scenarios also of several; each that is named fails."""
    named = [name for cause in CAUSES if cause.subject == subject for name in cause.requirements]
    assert set(named) == failures_of(SUMMARIES, subject).keys()
    assert all(named.count(name) == 1 for name in named if not name.startswith("interactions/"))


def test_every_cause_is_shown_by_a_script_or_has_a_reason() -> None:
    """Not both; and each script shows one cause."""
    assert [cause for cause in CAUSES if bool(cause.script) == bool(cause.reason)] == []
    shown = [FOLDER / "defects" / cause.script for cause in CAUSES if cause.script]
    assert sorted(shown) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.parent.name}/{script.stem}")
def test_a_script_is_short_and_has_nothing_of_ours(script: Path) -> None:
    """It needs torch and the library, names the versions of both, and says what it prints."""
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert OURS.findall(text) == []
    assert re.search(r"\(.*torch 2\.\d+\.\d+\)", text.partition("\n")[0])
    assert len(said_by(text)) == len(set(said_by(text))) == 2


@pytest.mark.parametrize("script", RUN_HERE, ids=lambda script: script.stem)
def test_a_defect_is_still_shown(script: Path) -> None:
    """What the script prints is what it says that it prints; otherwise the library has changed."""
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=GUARD)
    assert said_by(done.stdout) == said_by(script.read_text(encoding="utf-8")), done.stderr


def said_by(text: str) -> list[str]:
    """Without its first word, what is expected, and what came."""
    return re.findall(r"^(?:Expected|Got): (.*)$", text, re.MULTILINE)
