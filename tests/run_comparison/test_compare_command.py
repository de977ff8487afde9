"""``fsdp-conformance compare``: its words, its JSON, its exit status, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness import cli
from harness.data.text import visible
from harness.records.reader import Run
from harness.records.record import Verdict
from harness.run_comparison.report_text import MOST_LINES
from tests.report.report_samples import HOSTILE, file_of, row, run_of
from tests.run_comparison.test_compare_runs import side


def files(tmp_path: Path, a: Run, b: Run) -> list[str]:
    """Both runs as files."""
    return [str(file_of(a, tmp_path / "a.jsonl")), str(file_of(b, tmp_path / "b.jsonl"))]


@pytest.mark.parametrize(
    ("was", "now", "flags", "status"),
    [
        ("pass", "pass", [], 0),
        ("fail", "fail", [], 0),
        ("pass", "fail", [], 1),
        ("pass", "missing", [], 1),
        ("pass", "waived", [], 0),
        ("pass", "waived", ["--strict"], 1),
        ("pass", "not run", ["--strict"], 1),
        ("fail", "not run", ["--strict"], 0),
        ("pass", "", ["--strict"], 1),
    ],
)
def test_the_exit_status_tells_regressions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], was: str, now: str, flags: list[str], status: int
) -> None:
    """0 without a regression and 1 with one; with --strict passes that are excused or gone are some too."""
    assert cli.main(["compare", *files(tmp_path, side(was), side(now)), *flags]) == status
    said = capsys.readouterr().out
    assert ("regressed" in said) is ((was, now) == ("pass", "fail"))


def test_the_text_says_what_where_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that differ by world alone share a line, MUST first, with the verdicts and the first line of the message."""
    worlds = ("threads", "processes")
    before = [row(name, level=level, world=w) for name, level in (("a", "may"), ("b", "must")) for w in worlds]
    after = [replace(r, verdict=Verdict.FAIL, message="rank 0: it is 2\nand more") for r in before]
    assert cli.main(["compare", *files(tmp_path, run_of(*before), run_of(*after, status=1))]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("4 results regressed: passed in the baseline")
    assert lines[place + 1] == "  must    sharding/b in threads, processes: pass → fail: rank 0: it is 2"
    assert lines[place + 2].startswith("  may     sharding/a in threads, processes: pass → fail")
    assert lines[-1] == "4 results: 4 regressed. 4 regressions."


def test_long_lists_are_cut_unless_asked_for_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regressions are always listed whole, what is fixed only with --all."""
    many = [row(f"r{number}") for number in range(3 * MOST_LINES)]
    bad = [replace(one, verdict=Verdict.FAIL) for one in many]
    there, back = files(tmp_path, run_of(*many), run_of(*bad))
    assert cli.main(["compare", there, back]) == 1
    assert capsys.readouterr().out.count("pass → fail") == len(many)
    assert cli.main(["compare", back, there]) == 0
    said = capsys.readouterr().out
    assert said.count("fail → pass") == MOST_LINES
    assert f"and {2 * MOST_LINES} more lines" in said
    assert cli.main(["compare", back, there, "--all"]) == 0
    assert capsys.readouterr().out.count("fail → pass") == len(many)


def test_json_goes_to_a_file_or_in_place_of_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json FILE`` writes beside the text, ``--json -`` prints it alone; both say the same, with a version."""
    paths = files(tmp_path, side("pass"), side("fail"))
    assert cli.main(["compare", *paths, "--json", str(tmp_path / "c.json")]) == 1
    assert "1 regression" in capsys.readouterr().out
    written = json.loads((tmp_path / "c.json").read_text())
    assert cli.main(["compare", *paths, "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out) == written
    assert (written["kind"], written["schema"], written["regressions"]) == ("comparison", 2, 1)
    [changed] = written["rows"]
    known = {key: changed[key] for key in ("requirement", "world", "change", "baseline", "candidate", "counts")}
    assert known == {
        "requirement": "sharding/a", "world": "threads", "change": "regressed",
        "baseline": "pass", "candidate": "fail", "counts": True,
    }  # fmt: skip


@pytest.mark.parametrize("factor", ["0.5", "nan", "inf", "much"])
def test_a_factor_that_is_none_is_refused(factor: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's status 2, and a sentence."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(["compare", "a.jsonl", "b.jsonl", "--drift", factor])
    assert "expected a number of at least 1" in capsys.readouterr().err


def test_hostile_values_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever records say, the terminal is not steered, and the JSON is ASCII."""

    def hostile(verdict: Verdict, **header: Any) -> Run:
        told = {"world": HOSTILE, "message": HOSTILE, "nodeid": f"t.py::x[{HOSTILE}]", "reproduce": HOSTILE}
        run = run_of(row(HOSTILE, verdict, **told))
        return replace(run, header=replace(run.header, **header))

    paths = files(tmp_path, hostile(Verdict.PASS), hostile(Verdict.FAIL, environment={HOSTILE: HOSTILE}, seed=HOSTILE))
    assert cli.main(["compare", *paths]) == 1
    said = capsys.readouterr().out
    assert visible(said) == said
    assert cli.main(["compare", *paths, "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out.encode("ascii"))["rows"][0]["baseline"] == "pass"
