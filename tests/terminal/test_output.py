"""What a run prints from its first test to its last line, and what it leaves out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.patience import GUARD
from tests.plugin.test_plugin_options import SUBJECT, SUITE

FAILING = SUITE.replace("case.digit < 10", "case.digit < 3")
#: No backend offers so many ranks.
CROWDED = SUITE.replace("Feature.FULLY_SHARD)", "Feature.FULLY_SHARD, ranks=999)")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder of a user's own, in which tests are requirements."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["harness.pytest_plugin"]')
    return tmp_path


def printed(there: Path, suite: str, *args: str, columns: int = 0) -> list[str]:
    """The lines that pytest prints on this suite; with ``columns``, on a terminal so wide, rewritten lines each."""
    (there / "test_few.py").write_text(suite)
    words = [sys.executable, "-m", "pytest", *SUBJECT, "-p", "no:cacheprovider", *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns or 100), "TERM": "xterm"}
    if not columns:
        ended = subprocess.run(words, cwd=there, env=environment, stdout=subprocess.PIPE, text=True, timeout=GUARD)
        return ended.stdout.splitlines()
    reading, writing = os.openpty()
    with subprocess.Popen(words, cwd=there, env=environment, stdout=writing):
        os.close(writing)
        text = b""
        while part := _part(reading):
            text += part
    os.close(reading)
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*m", "", text.decode()))


def _part(reading: int) -> bytes:
    try:
        return os.read(reading, 65536)
    except OSError:  # the last process that had the terminal has ended
        return b""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_progress_is_a_line_of_its_own(there: Path, workers: str) -> None:
    """No name of a file, no letter and no count of pytest's is in it or beside it; it fits into the terminal."""
    lines = printed(there, FAILING, "-n", workers, "--world", "threads", columns=60)
    ours = [line for line in lines if " of 3 results" in line]
    assert ours[-1].rstrip().startswith("[100%] 3 of 3 results in ")
    assert all(re.match(r"\[\d+%\] \d of 3 results in ", line) and len(line) <= 60 for line in ours)
    before = lines[: lines.index(next(line for line in lines if " FAILURES " in line))]
    assert not [line for line in before if "test_few.py" in line or re.search(r"\[ ?\d/3\]", line)]
    assert "fail: few/must [threads] a digit" in before


def test_a_failure_is_its_message_the_smallest_case_and_how_to_reproduce_it(there: Path) -> None:
    """Under the name of its requirement, without frames, and listed by requirement alone."""
    lines = printed(there, FAILING, "--world", "threads")
    start, end = (place for place, line in enumerate(lines) if " FAILURES " in line or " FSDP " in line)
    heading, message, case, reproduce = lines[start + 1 : end]
    assert heading.strip("_ ") == "few/must [threads]"
    assert message == "fail: a digit"
    assert case == "smallest case: Digit(digit=3, world_size=1)"
    assert reproduce.startswith("reproduce: pytest 'test_few.py::test_draws[threads]' --implementation tests.plugin.")
    assert reproduce.endswith("""--case '{"case": "Digit", "digit": 3, "world_size": 1}'""")
    assert [line for line in lines if "few/must [threads] a digit" in line] == ["fail: few/must [threads] a digit"] * 2
    assert not [line for line in lines if "short test summary" in line]


def test_frames_are_shown_to_who_asks_for_them_and_of_our_own_faults(there: Path) -> None:
    """``--tb=long`` has pytest's traceback; so has any failure that is not the subject's."""
    asked = printed(there, FAILING, "--world", "threads", "--tb=long")
    assert any(line.startswith("E ") and "SubjectFailure: a digit" in line for line in asked)
    ours = printed(there, SUITE.replace("trial.holds(case.digit < 10", "trial.nothing(case.digit < 10"), "-k", "draws")
    assert any(line.startswith("E ") and "AttributeError" in line for line in ours)
    assert any(line.startswith("broken: AttributeError") for line in ours)


def test_where_pytest_names_results_their_requirements_stand_beside(there: Path) -> None:
    """With ``-v`` as they come, and in the lists of ``-r``."""
    lines = printed(there, SUITE, "-v", "-rp")
    for words in ("test_few.py::test_holds[threads] PASSED few/should", "PASSED few/should test_few.py::test_holds"):
        assert any(line.startswith(words) for line in lines), words


def test_a_run_ends_with_its_verdict(there: Path) -> None:
    """Below what pytest counts: what failed, what was not run by reason, and, as the last line, what it comes to."""
    lines = printed(there, CROWDED, "-q")
    place = next(place for place, line in enumerate(lines) if line.startswith("not run: 1 result: needs 999 ranks in"))
    assert lines[place + 1] == "  few/must [threads]"
    assert "passed" in lines[-2]
    assert lines[-1].startswith("sample on small: INCOMPLETE: 2 results not run; no MUST result passed")
