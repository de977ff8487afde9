"""What a command cannot do is one line on stderr; nothing is printed besides, and no file is written or changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import attached, cli
from harness.data.text import visible
from harness.records.record import Footer, Verdict
from tests.bad_input import files
from tests.bad_input.table import COMMANDS, LAUNCHERS, PYTEST, WAIVERS, has
from tests.report.report_samples import file_of, row, run_of
from tests.untrusted import harmless
from tests.waivers.test_waivers import GOOD


def short(given: object) -> str:
    """A row's id: what is given, in ASCII, and not endless."""
    return ascii(visible(given if isinstance(given, str) else " -> ".join(map(str, given))))[1:60]  # type: ignore[call-overload]


def said_by(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Status and stderr of a command, which has said one sentence, and printed nothing but a doctor's findings."""
    try:
        status = cli.main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    out, said = capsys.readouterr()
    assert all(arguments[0] == "doctor" and line.startswith("found ") for line in out.splitlines())
    assert harmless.is_sentence(said.removesuffix("\n")), said
    return status, said


def test_the_table_is_long_enough() -> None:
    """At least 80 rows, besides interruptions."""
    assert len(COMMANDS) + len(WAIVERS) + len(PYTEST) + len(LAUNCHERS) >= 80


@pytest.mark.parametrize("line", COMMANDS, ids=short)
def test_what_a_command_cannot_do_is_one_sentence(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, one line that steers no terminal, no output, and every file as it was."""
    monkeypatch.chdir(tmp_path)
    before = files.write_files(tmp_path)
    status, said = said_by(line.split(" "), capsys)
    assert (status, has(said, COMMANDS[line])) == (2, True), said
    assert files.contents(tmp_path) == before


@pytest.mark.parametrize("change", WAIVERS, ids=short)
def test_what_is_wrong_with_a_waiver_is_one_sentence(
    change: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, and a line with the file, the entry, and what is wrong with it."""
    file = tmp_path / "w.toml"
    file.write_text(GOOD.replace(*change, 1))
    status, said = said_by(["waivers", "check", str(file)], capsys)
    assert (status, has(said, WAIVERS[change]), str(file) in said) == (2, True, True), said


@pytest.mark.parametrize(("variables", "words"), LAUNCHERS, ids=lambda value: " ".join(value)[:60])
def test_a_wrong_start_of_ranks_is_one_sentence(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 4, and a line with what is missing or wrong in what a launcher says, and what to do."""
    monkeypatch.setattr("os.environ", variables)
    assert attached.main(["--", "pytest", "suites"]) == 4
    out, said = capsys.readouterr()
    assert out == ""
    assert harmless.is_sentence(said.removesuffix("\n"))
    assert has(said, words)


def test_an_edited_record_is_one_sentence_and_makes_no_green_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A verdict changed with an editor: the page is made all the same, status 0, and says that nothing is proven."""
    file = file_of(run_of(row("a", Verdict.FAIL), footer=Footer("", 1.0, 0, digest="0" * 64)), tmp_path / "run.jsonl")
    file.write_text(file.read_text().replace('"fail"', '"pass"'))
    assert cli.main(["report", str(file)]) == 0
    out, said = capsys.readouterr()
    assert harmless.is_sentence(said.removesuffix("\n"))
    assert "run.jsonl: was edited after the run: its lines do not have the digest" in said
    assert "INCOMPLETE: the record file is damaged, or was edited" in out
