"""What a run cannot be asked for is one line, before any test: of pytest itself, of its workers, of ``run``."""

from __future__ import annotations

import re

import pytest

from harness import cli
from tests.bad_input import files
from tests.bad_input.table import PYTEST, has
from tests.plugin.test_plugin import SUBJECT, pytest_run
from tests.plugin.test_plugin_options import SUITE

pytest_plugins = ["pytester"]


def short(value: object) -> str:
    """A row's id: what is given."""
    return " ".join(value)[:50] if isinstance(value, list) else ""


@pytest.mark.parametrize(("args", "words"), PYTEST, ids=short)
def test_what_a_run_cannot_be_asked_for_is_one_sentence(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    """Exit status 4 and one line that says what to do: no traceback, no test, and every file as it was."""
    pytester.makeconftest('pytest_plugins = ["harness.pytest_plugin"]')
    pytester.makepyfile(test_few=SUITE, raises_on_import="raise RuntimeError('no driver')", unfit=files.UNFIT)
    pytester.syspathinsert()
    monkeypatch.chdir(pytester.path)
    before = files.contents(pytester.path)
    result = pytester.runpytest_inprocess(*SUBJECT, "-p", "no:cacheprovider", *args)
    text = f"{result.stdout.str()}\n{result.stderr.str()}"
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len([line for line in text.splitlines() if has(line, words)]) == 1, text
    assert len([line for line in text.splitlines() if line.startswith("ERROR: ")]) == 1, text
    assert "Traceback" not in text
    assert not re.search(r"\d (passed|failed|skipped)", text), "nothing is run before"
    assert files.contents(pytester.path) == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        *(row for row in PYTEST if row[0] in (["--case", "{"], ["--implementation", "nobody"])),
        (["--hypothesis-profile", "swift"], "--hypothesis-profile 'swift': expected one of quick, full, soak, "),
        (["--case", '{"case": "Nothing"}'], "--case: unknown case class 'Nothing'; known here: "),
        (["--case", '{"case": "Number", "number": "one"}'], "--case: \"number\" of Number must be int, got 'one'"),
    ],
    ids=short,
)
def test_where_workers_run_the_tests_it_is_one_sentence_as_well(args: list[str], words: str) -> None:
    """Workers of pytest-xdist collect the tests; what they refuse ends the run as it does without them."""
    ended = pytest_run("tests/plugin/samples.py", "-k", "test_small_numbers", *SUBJECT, "--numprocesses", "2", *args)
    lines = (ended.stdout + ended.stderr).splitlines()
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert len([line for line in lines if line.startswith("ERROR: ") and has(line, words)]) == 1
    assert not [line for line in lines if "INTERNALERROR" in line or "Traceback" in line]


def test_an_option_of_pytest_that_is_wrong_is_said_by_pytest_alone(
    tmp_path: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    """``run`` passes on what it does not know; where pytest refuses it, status 4, and nothing is said twice."""
    words = ["--implementation", "torch", "--numprocesses", "0", "--level", "maybe", "-o", str(tmp_path)]
    assert cli.main(["run", *words]) == pytest.ExitCode.USAGE_ERROR
    out, said = capfd.readouterr()
    told = [line for line in (out + said).splitlines() if line.strip()]
    assert told == ["ERROR: --level 'maybe': expected one of must, should, may, all"]
