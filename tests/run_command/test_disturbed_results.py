"""Rows whose ranks something from outside ended: they pass when their run is repeated, or are broken, never failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis.errors import FlakyFailure

from harness.records.reader import read_run
from harness.records.record import Verdict
from harness.trial.verdict import verdict_of
from harness.worlds.base import Disturbed, SubjectFailure
from tests.plugin.test_plugin import SUBJECT, pytest_run


@pytest.mark.parametrize(
    "inner", [[Disturbed("ranks died")], [SubjectFailure("off", "raised"), Disturbed("ranks died")]]
)
def test_a_disturbance_that_hypothesis_takes_for_flakiness_is_no_failure(inner: list[Exception]) -> None:
    """What was disturbed is broken, also where an example failed before or after."""
    assert verdict_of(FlakyFailure("differs", inner), None) == (Verdict.BROKEN, "ranks died", "disturbed")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of samples that kill their fork server: its record, and what it printed."""
    there = tmp_path_factory.mktemp("disturbed")
    files = ["--record", str(there / "record.jsonl")]
    ended = pytest_run("tests/run_command/disturbed_samples.py", *SUBJECT, *files, SAMPLE_FOLDER=str(there))
    return there / "record.jsonl", ended.stdout


@pytest.mark.parametrize("world", ["processes", "threads"])
def test_rows_whose_fork_server_dies_are_never_red_for_the_subject(ended: tuple[Path, str], world: str) -> None:
    """Once: the row passes. Each time: it is broken, with what died and what to do. The next row is unharmed."""
    rows = {record.requirement: record for record in read_run(ended[0]).records if record.world == world}
    ends = {name.partition("/")[2]: (row.verdict, row.cause) for name, row in rows.items()}
    passes = (Verdict.PASS, "")
    assert ends == {"once": passes, "always": (Verdict.BROKEN, "disturbed"), "afterwards": passes}, ended[1]
    assert "the fork server died (killed by SIGKILL)" in rows["disturbed/always"].message
    assert "says nothing about the subject" in rows["disturbed/always"].message


def test_a_row_that_was_repeated_is_told_of_in_the_terminal(ended: tuple[Path, str]) -> None:
    """A row that passed when it was repeated has a warning that says why, and is no problem of the run."""
    told = ended[1].partition("warnings summary")[2]
    assert "test_survives[processes]" in told
    assert "the fork server died (killed by SIGKILL): the 2 ranks are started again" in told
    run = read_run(ended[0])
    assert run.footer is not None
    assert run.footer.problems == []
