"""How a run is followed: on its own terminal, in a log, and by its file."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import cli
from harness.commands import watch
from harness.pytest_plugin import progress as printing
from harness.pytest_plugin.planned import DURATIONS, OTHERS, Planned, durations, planned_results
from harness.pytest_plugin.progress import Progress, summary_lines
from harness.records.provenance import suites_folder
from harness.records.record import Verdict
from harness.requirements.finder import suite_tests
from tests.durations import LONG, table
from tests.plugin.test_plugin_options import SUBJECT, SUITE
from tests.records.test_combinations import BOTH, TIED, failing
from tests.report.report_samples import HOSTILE, file_of, full_run, row, run_of

pytest_plugins = ["pytester"]


def test_a_line_says_how_far_a_run_is_and_what_is_left() -> None:
    """Results by verdict, the share of all, seconds, and at this pace how many more."""
    progress = Progress({f"t.py::r{number}[threads]": Planned(f"a/r{number} [threads]") for number in range(40)})
    assert progress.line(3.0) == "[0%] 0 of 40 results in 3.0 s"
    for number in range(10):
        progress.add(row(f"r{number}", Verdict.FAIL if number == 3 else Verdict.PASS))
    said = progress.line(20.0, current="t.py::r10[threads]")
    assert said == "[25%] 10 of 40 results in 20 s, about 60 s left: 9 pass, 1 fail; now a/r10 [threads]"
    assert progress.line(20.0, is_over=True) == "[25%] 10 of 40 results in 20 s: 9 pass, 1 fail"


def test_the_time_left_is_by_measured_durations() -> None:
    """Nine of ten results that took a tenth of the work leave nine times as much time, not a ninth."""
    progress = Progress(
        {f"t.py::r{number}[threads]": Planned("", 81.0 if number == 9 else 1.0) for number in range(10)}
    )
    for number in range(9):
        progress.add(row(f"r{number}"))
    assert "in 18 s, about 2 min 42 s left" in progress.line(18.0)


def test_planned_results_have_the_names_of_their_requirements(tmp_path: Path) -> None:
    """Those of the suites by their ids, others by their functions; each with what it took when it was measured."""
    test = "suites/training/test_training_parity.py::test_training_on_integers_equals_the_unsharded_model_bit_for_bit"
    mine = "mine/test_few.py::test_draws[processes]"
    found = planned_results([f"{test}[threads]", mine])
    assert [found[f"{test}[threads]"].name, found[mine].name] == ["parity/exact [threads]", "test_draws [processes]"]
    assert all(each.seconds > 0 for each in found.values())
    assert durations(tmp_path / "none.tsv") == {}


def test_durations_are_of_requirements_that_there_are() -> None:
    """No line is left of a requirement that is gone or has another name; it is made by ``tests.durations``."""
    folder = suites_folder()
    assert folder is not None
    known = {(test.requirement, world) for test in suite_tests(folder) for world in test.worlds}
    assert {*durations(folder / DURATIONS)} - known == {(OTHERS, "")}
    lines = list(table([row("a", seconds=LONG), row("b", seconds=0.25), row("c", seconds=0.75)]))
    assert lines[1:] == ["sharding/a\tthreads\t2.0", "others\t\t0.50"]


def test_a_red_result_is_printed_once() -> None:
    """The first line of its message, in one line; a result that comes again, or is not red, adds nothing."""
    progress, red = Progress({}), row("a", Verdict.FAIL, message="off by one\nand more")
    assert progress.add(red) == "fail: sharding/a [threads] off by one"
    assert progress.add(red) == progress.add(row("b", Verdict.WAIVED)) == ""
    assert progress.add(row("b", Verdict.BROKEN)) == "broken: sharding/b [threads]"


def test_what_is_said_steers_no_terminal() -> None:
    """Whatever a result holds, it is one line without controls."""
    progress = Progress({HOSTILE: Planned(HOSTILE)})
    said = [
        progress.add(row("a", Verdict.FAIL, message=HOSTILE + "\x1b[2J", world=HOSTILE)),
        progress.line(1.0, HOSTILE),
    ]
    assert not [line for line in said if re.search(r"[\x00-\x1f\x7f\u202e\ud800]", line)]


def test_at_the_end_results_with_the_same_cause_are_told_together() -> None:
    """Causes first, that of most results at the top, with where it is; then other failures; and by reason the idle."""
    tried = ("tied", "2", "cpu", "F")
    lines = summary_lines([
        row("o", Verdict.NOT_RUN, message="needs a folder"),
        row("m", Verdict.NOT_RUN, message="needs 4 ranks\nand more"),
        row("n", Verdict.NOT_RUN, message="needs 4 ranks", world="processes"),
        row("f", Verdict.FAIL, message="off by one"),
        failing("a", tried, causes=[BOTH]),
        failing("b", tried, causes=[TIED]),
        failing("c", tried, causes=[TIED], world="processes"),
        failing("w", tried, causes=[TIED], verdict=Verdict.WAIVED),
        row("p"),
    ])  # fmt: skip
    assert lines == [
        "fail: 2 results: fails with net=tied; passes without",
        "  sharding/b [threads], sharding/c [processes]",
        f"fail: 1 result: {BOTH[1]}",
        "  sharding/a [threads]",
        "fail: sharding/f [threads] off by one",
        "not run: 2 results: needs 4 ranks",
        "  sharding/m [threads], sharding/n [processes]",
        "not run: 1 result: needs a folder",
        "  sharding/o [threads]",
    ]


def test_an_error_is_told_with_what_only_its_cases_ask_for() -> None:
    """What to make right, or not to claim, stands in the line of the cause; errors of every kind of case have none."""
    message = "rank 0 of 2 failed first (raised): NotImplementedError: Uneven sharding of (5, 3) over 2 ranks"
    red = [
        row(name, Verdict.FAIL, message=message, asked={"": {"fail": 2}, "uneven rows": {"fail": 2}}) for name in "ab"
    ]
    even = row("c", asked={"": {"pass": 9}})
    cause = "fail: 2 results: NotImplementedError: Uneven sharding of (5, 3) over 2 ranks"
    assert summary_lines([*red, even])[0] == (
        f"{cause}; 4 of 4 cases that fail ask for uneven rows, none of 9 that pass: make it right, or do not claim it"
    )
    assert summary_lines([*red, row("d", asked={"": {"pass": 3}, "uneven rows": {"pass": 3}})])[0] == cause


FAILING = SUITE.replace("case.digit < 10", "case.digit < 0")


def test_a_log_has_each_red_result_as_it_comes_and_how_far_the_run_is(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the summary: the red result, and lines with counts; pytest's own letters are left out."""
    monkeypatch.setattr(printing, "IN_A_LOG", 0.0)
    pytester.makeconftest('pytest_plugins = ["harness.pytest_plugin"]')
    pytester.makepyfile(test_few=FAILING)
    pytester.syspathinsert()
    lines = pytester.runpytest_inprocess(*SUBJECT, "--world", "threads").outlines
    ends = next(place for place, line in enumerate(lines) if "FAILURES" in line)
    assert any(line.startswith("fail: few/must [threads] a digit") for line in lines[:ends])
    assert any(
        re.match(r"\[100%\] 3 of 3 results in .*: 1 pass, 1 fail, 1 not claimed; now test_unclaimed", line)
        for line in lines
    )
    assert not [line for line in lines if re.search(r"test_few.py [.Fsx]", line)]


@pytest.mark.parametrize("flag", ["-v", "-qq"])
def test_verbose_and_silent_output_stay_as_they_are(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    """With ``-v`` pytest names each result itself, and ``-qq`` asks for nothing of the kind."""
    monkeypatch.setattr(printing, "IN_A_LOG", 0.0)
    pytester.makeconftest('pytest_plugins = ["harness.pytest_plugin"]')
    pytester.makepyfile(test_few=SUITE)
    pytester.syspathinsert()
    lines = pytester.runpytest_inprocess(*SUBJECT, flag).outlines
    assert not [line for line in lines if " results: " in line]
    assert any("PASSED" in line for line in lines) == (flag == "-v")


# By its file.


def watched(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, list[str]]:
    """Status and lines of the command."""
    status = cli.main(["watch", str(path), "--every", "0"])
    return status, capsys.readouterr().out.splitlines()


def test_a_file_that_is_whole_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each red result, the counts, and the run's own exit status."""
    status, lines = watched(capsys, file_of(full_run(status=1), tmp_path / "run.jsonl"))
    assert status == 1
    assert lines[0].startswith("fail: sharding/FAIL [threads] off by one")
    assert lines[-1].startswith("[87%] 7 of 8 results in 60 s: 1 pass, 1 fail")


def test_a_file_that_grows_is_followed_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has written half a line so far is waited for, and ends the command when it ends."""
    run = run_of(row("a"), row("b", Verdict.FAIL, message="late"), status=1)
    path = file_of(run, tmp_path / "run.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"late"')])
    pause = SimpleNamespace(wait=lambda seconds: path.write_bytes(whole))
    monkeypatch.setattr(watch, "threading", SimpleNamespace(Event=lambda: pause))
    status, lines = watched(capsys, path)
    assert (status, re.sub("in .*:", "in …:", lines[0])) == (1, "[50%] 1 of 2 results in …: 1 pass")
    assert "fail: sharding/b [threads] late" in lines
