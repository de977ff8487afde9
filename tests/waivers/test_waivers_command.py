"""``fsdp-conformance waivers``: what the command prints, and what it says when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import toml

from harness import cli
from harness.data.text import visible
from harness.records.provenance import suites_folder
from harness.records.record import Verdict
from tests.report.report_samples import HOSTILE, file_of, row, run_of
from tests.waivers.stanzas import stanza
from tests.waivers.test_waivers_checked import ran

# The command.


def run_command(*words: str | Path) -> int:
    """The command's exit status."""
    return cli.main(["waivers", *map(str, words)])


STANZA = stanza("sharding/a", "torch", "2027-06-15")


@pytest.mark.parametrize(
    ("end", "on", "status", "words"),
    [
        (Verdict.FAIL, "2026-06-15", 0, "ok       entry 1  sharding/a (torch): needed: 1 row failed"),
        (
            Verdict.FAIL,
            "2027-06-01",
            0,
            "warning  entry 1  sharding/a (torch): expires soon: on 2027-06-15, in 14 days",
        ),
        (
            Verdict.FAIL,
            "2027-06-16",
            1,
            "error    entry 1  sharding/a (torch): expired: ran out on 2027-06-15, 1 day ago",
        ),
        (Verdict.PASS, "2026-06-15", 1, "error    entry 1  sharding/a (torch): stale: 1 row of it passed"),
    ],
)
def test_check_tells_of_each_waiver_and_fails_on_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: Verdict, on: str, status: int, words: str
) -> None:
    """A line a finding, with its weight and entry, and a count; status 1 if any is an error."""
    (tmp_path / "w.toml").write_text(STANZA)
    record = file_of(ran(end), tmp_path / "run.jsonl")
    assert run_command("check", tmp_path / "w.toml", "--records", record, "--on", on) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(words)
    assert lines[-1].startswith("1 waiver: ")


def test_check_reads_the_suites_beside_the_harness(capsys: pytest.CaptureFixture[str]) -> None:
    """The waivers that come with the suites match them, long before they run out."""
    folder = suites_folder()
    assert folder is not None
    assert run_command("check", folder / "waivers.toml", "--on", "2026-06-15") == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_suggest_prints_what_fails_or_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All failures, or those of the requirements and node ids named; nothing to waive is a comment."""
    rows = [row(name, Verdict.FAIL, cause="raised", message=HOSTILE) for name in "abc"]
    path = file_of(run_of(*rows), tmp_path / "run.jsonl")
    asked: dict[tuple[str, ...], int] = {(): 3, ("sharding/a", rows[1].nodeid): 2}
    for names, count in asked.items():
        assert run_command("suggest", path, *(word for name in names for word in ("--id", name))) == 0
        text = capsys.readouterr().out
        assert visible(text) == text
        assert len(toml.decode(text)["waiver"]) == count
    assert run_command("suggest", file_of(ran(Verdict.PASS), path)) == 0
    assert toml.decode(capsys.readouterr().out) == {}
