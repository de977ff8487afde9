"""The plugin as its user meets it: a whole run of a suite whose rows end in every way, its record, and the way back."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.load import Subject
from harness.report.read import Run, missing, read_run
from harness.requirement import Requirement
from harness.session import Judged
from harness.submission.manifest import Entry
from harness.submission.plan import PlannedRow
from harness.submission.rows import ROW_CHECKS, Row
from harness.verdict import Record, Verdict
from harness.waivers import waivers_in
from tests.plugin_samples import ENDS, WAIVERS

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent
Completed = subprocess.CompletedProcess[str]
SUBJECT = ["--implementation", "tests.plugin_samples:implementation", "--backend", "tests.plugin_samples:backend"]


def pytest_run(*args: str) -> Completed:
    """A run of pytest in a process of its own, in the repository."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def samples_run(there: Path, *args: str) -> tuple[Completed, Run]:
    """The samples, run in both worlds with their waivers."""
    (there / "waivers.toml").write_text(WAIVERS)
    files = ["--waivers", str(there / "waivers.toml"), "--record", str(there / "record.jsonl")]
    return pytest_run("tests/plugin_samples.py", *SUBJECT, *files, *args), read_run(there / "record.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Completed, Run]:
    """The samples, run once in one process."""
    return samples_run(tmp_path_factory.mktemp("plugin"))


def one(run: Run, name: str, world: str) -> Record:
    """The one row of a requirement in a world."""
    [record] = [r for r in run.records if r.requirement == f"samples/{name}" and r.world == world]
    return record


@pytest.mark.parametrize("world", ["threads", "processes"])
@pytest.mark.parametrize("name", ENDS)
def test_a_row_ends_as_it_must(whole: tuple[Completed, Run], name: str, world: str) -> None:
    """Each way for a test to end has its verdict, cause and words, the same in both worlds."""
    record = one(whole[1], name, world)
    verdict, cause, words = ENDS[name]
    assert (record.verdict, record.cause) == (verdict, cause), record.message
    assert re.search(words, record.message)


def test_every_planned_row_is_recorded(whole: tuple[Completed, Run]) -> None:
    """Header, one row for each planned test, and a footer with what stands in the way of green."""
    run = whole[1]
    assert missing(run) == []
    assert len(run.records) == 2 * len(ENDS)
    assert run.footer is not None
    assert (run.footer.exit_status, len(run.footer.problems)) == (1, 1)


def test_every_row_that_a_run_writes_agrees_with_itself(whole: tuple[Completed, Run]) -> None:
    """What `verify` holds rows against, no row of a real run goes against, whatever its verdict."""
    entry = Entry("records/01-samples.jsonl", b"", whole[1], waivers_in(WAIVERS.encode(), "waivers"))
    for record in whole[1].records:
        told = (record.nodeid, record.requirement, record.level, record.world, record.statement)
        planned = PlannedRow(*told, tuple(record.features), ("pinned memory",), 3, record.source)
        assert [said for check in ROW_CHECKS for said in check(Row(record, entry, planned))] == []


def test_workers_come_to_the_same_rows(whole: tuple[Completed, Run], tmp_path: Path) -> None:
    """Under pytest-xdist there is one record file with the same plan, rows, problems and status, and one terminal."""
    ended, run = samples_run(tmp_path, "--numprocesses", "2")
    assert run.header is not None
    assert whole[1].header is not None
    assert run.header.plan == whole[1].header.plan
    assert run.header.plan_digest == whole[1].header.plan_digest != ""
    assert run.header.waiver_files == whole[1].header.waiver_files != []
    assert {_told(record) for record in run.records} == {_told(record) for record in whole[1].records}
    assert len(run.records) == len(whole[1].records)
    assert run.footer is not None
    assert whole[1].footer is not None
    assert (run.footer.exit_status, run.footer.problems) == (1, whole[1].footer.problems)
    assert "pass: 8  fail: 8  waived: 2  stale waiver: 4  not claimed: 4  not run: 8  broken: 6" in ended.stdout


def _told(record: Record) -> tuple[str, ...]:
    first = (record.message.splitlines() or [""])[0]
    return record.requirement, record.world, record.verdict, record.cause, first, record.reproduce


def test_workers_do_not_share_a_device() -> None:
    """On an accelerator nothing is tried by several workers, and the reason is told."""
    here = Subject(SUBJECT[1], "tests.plugin_samples:device")
    found = Requirement("samples/any", (), "must", 1, (), ("threads",), "")
    verdict, why = Judged(here, (), workers=2).why_not(found, "threads") or (None, "")
    assert (verdict, why) == (Verdict.NOT_RUN, "2 workers would share cuda devices: run without --numprocesses")
    assert Judged(here, (), workers=1).why_not(found, "threads") is None


def test_the_terminal_names_what_is_red_and_what_matches_nothing(whole: tuple[Completed, Run]) -> None:
    """A failing run exits with 1, counts verdicts, and names the waiver that matches nothing."""
    ended = whole[0]
    assert ended.returncode == 1
    assert "pass: 8  fail: 8  waived: 2  stale waiver: 4  not claimed: 4  not run: 8  broken: 6" in ended.stdout
    assert "problem: waiver for 'samples/nowhere' matches no requirement" in ended.stdout


@pytest.mark.parametrize("world", ["threads", "processes"])
def test_what_differs_is_recorded_of_all_ranks(whole: tuple[Completed, Run], world: str) -> None:
    """Of a comparison that failed on both ranks, the record has both, the sizes as numbers or none."""
    told = {"path": "", "got": "2.0", "want": "1.0", "off": 1.0, "allowed": 0.0, "ratio": None}
    differences = one(whole[1], "disagrees", world).differences
    assert differences == [{"where": f"rank {number}", **told} for number in range(2)]
    assert one(whole[1], "passes", world).differences == []


def test_the_smallest_failing_case_is_recorded(whole: tuple[Completed, Run]) -> None:
    """Of 1001 numbers of which 998 fail, the record has the smallest, and what became of each rank."""
    record = one(whole[1], "draws", "processes")
    assert record.case == {"case": "Number", "number": 3, "world_size": 2}
    assert [rank["fate"] for rank in record.ranks] == ["returned", "raised"]
    assert "too_much" in record.ranks[1]["traceback"]


def test_the_reproduction_line_runs_the_one_failing_case(whole: tuple[Completed, Run], tmp_path: Path) -> None:
    """The line of a record, typed as it stands, fails again with exactly one example."""
    record = one(whole[1], "draws", "threads")
    program, *args = shlex.split(record.reproduce)
    ended = pytest_run(*args, "--record", str(tmp_path / "again.jsonl"))
    [again] = read_run(tmp_path / "again.jsonl").records
    assert (program, ended.returncode) == ("pytest", 1)
    assert (again.verdict, again.examples, again.case) == (Verdict.FAIL, 1, record.case)
    assert (again.message, again.statement, again.reproduce) == (record.message, record.statement, record.reproduce)


def test_a_test_that_draws_nothing_is_reproduced_without_a_case(whole: tuple[Completed, Run]) -> None:
    """Where there is but one case, the line does not name it: ``--case`` would be refused."""
    assert "--case" not in one(whole[1], "leaves-badly", "threads").reproduce


# What the user gets wrong. No rank runs here, so these runs share this process.

SUITE = '''
from dataclasses import dataclass
from hypothesis import given, strategies as st
from harness.case import Case
from harness.requirement import requirement
from harness.vendor import Feature

@dataclass(frozen=True)
class Digit(Case):
    digit: int
    world_size: int = 1

tried = []

@requirement("few/must", Feature.FULLY_SHARD)
@given(case=st.builds(Digit, st.integers(0, 9)))
def test_draws(trial, case):
    """Digits are digits."""
    tried.append(case)
    trial._begin(case, 1)
    trial.holds(case.digit < 10, "a digit")

@requirement("few/should", Feature.FULLY_SHARD, level="should", worlds=("threads",))
def test_holds(trial):
    """It holds."""
    trial.holds(True, "it holds")

@requirement("few/unclaimed", Feature.HSDP, level="may")
def test_unclaimed(trial):
    """It holds."""
'''


@pytest.fixture
def few(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory of a user's own, with a small suite in it."""
    pytester.makeconftest('pytest_plugins = ["harness.plugin", "harness.plugin_test", "harness.plugin_end"]')
    pytester.makepyfile(test_few=SUITE, raises_on_import="raise RuntimeError('no driver')")
    pytester.syspathinsert()
    return pytester


def records(few: pytest.Pytester, *args: str) -> list[Record]:
    """The rows of a run with these arguments."""
    few.runpytest_inprocess(*SUBJECT, "--record", "record.jsonl", *args)
    return read_run(few.path / "record.jsonl").records


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--implementation", "nobody"], "unknown implementation 'nobody': expected one of reference, torch, or"),
        (["--backend", "nothing"], "unknown backend 'nothing': expected one of auto, gloo, nccl, or module:attribute"),
        (["--implementation", "not_there:x"], "implementation 'not_there:x': cannot import 'not_there' .* is it inst"),
        (["--implementation", "raises_on_import:x"], "'raises_on_import' failed with RuntimeError: no driver"),
        (["--implementation", "tests.plugin_samples:x"], "module 'tests.plugin_samples' has no 'x'; define it"),
        (["--implementation", "tests.plugin_samples:empty_claim"], "but gives no 'Implementation.checkp"),
        (["--implementation", "tests.plugin_samples:both_ways"], "both claims and disclaims fully_shard: decide"),
        (["--implementation", "tests.plugin_samples:not_an_implementation"], "expected a harness.vendor.Impl"),
        (["--world", "moon"], "--world 'moon': expected one of threads, processes, both"),
        (["--level", "maybe"], "--level 'maybe': expected one of must, should, may, all"),
        (["--waivers", "nowhere.toml"], "waiver file nowhere.toml: cannot be read .*; name another with --waivers"),
        (["--record", "test_few.py/x"], "--record test_few.py/x: cannot be written .*; name another file"),
        (["--case", "{"], "--case: Expecting property name"),
        (["--case", "7"], "--case: expected a JSON object with a \"case\" key naming the case class, got 7"),
        (["--case", '{"case": "Nothing"}'], "--case: unknown case class 'Nothing'; known here: .*Digit"),
        (["--case", '{"case": "Digit"}'], "--case: cannot build Digit from .*digit"),
        (["-k", "holds", "--case", '{"case": "Digit", "digit": 1}'], "test_holds.* draws no cases; run it without"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)  # fmt: skip
def test_what_the_user_got_wrong_is_said_in_one_sentence(few: pytest.Pytester, args: list[str], sentence: str) -> None:
    """An option that cannot be meant ends the run with exit code 4 and one line that says what to do, no traceback."""
    result = few.runpytest_inprocess(*SUBJECT, *args)
    text = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len([line for line in text.splitlines() if re.search(sentence, line)]) == 1
    assert "Traceback" not in text


def test_waivers_beside_the_suites_are_read_without_being_named(few: pytest.Pytester) -> None:
    """Known failures that come with suites count in every run of them, so one that passes is stale."""
    waiver = {"requirement": "few/should", "subject": "sample", "issue": "an issue", "reason": "a reason"}
    lines = [f'{key} = "{value}"' for key, value in waiver.items()]
    (few.path / "waivers.toml").write_text("\n".join(["[[waiver]]", *lines, "expires = 2999-01-01"]))
    [verdict] = {row.verdict for row in records(few, "-k", "holds")}
    assert verdict is Verdict.STALE_WAIVER


def test_a_run_that_tries_nothing_fails(few: pytest.Pytester) -> None:
    """Rows that were not claimed are no success: the run fails and says that nothing was tried."""
    result = few.runpytest_inprocess(*SUBJECT, "-k", "unclaimed")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["not claimed: 2", "problem: no requirement was tried"])


def test_a_green_run_exits_with_zero(few: pytest.Pytester) -> None:
    """What is not claimed does not stand in the way of green, and is counted."""
    result = few.runpytest_inprocess(*SUBJECT)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*FSDP conformance of sample on small*", "pass: 3  not claimed: 2"])


@pytest.mark.parametrize(("level", "rows"), [("must", 2), ("should", 3), ("may", 5), ("all", 5)])
def test_a_level_leaves_out_what_is_less_strict(few: pytest.Pytester, level: str, rows: int) -> None:
    """``--level should`` judges what must and what should be."""
    assert len(records(few, "--level", level)) == rows


@pytest.mark.parametrize(("world", "rows"), [("threads", 3), ("processes", 2), ("both", 5)])
def test_a_requirement_runs_in_the_worlds_that_it_is_about(few: pytest.Pytester, world: str, rows: int) -> None:
    """A requirement has a row in each world that was asked for, except where it makes no sense."""
    found = records(few, "--world", world)
    assert len(found) == rows
    assert {record.world for record in found} == ({"threads", "processes"} if world == "both" else {world})


def test_a_case_is_run_alone(few: pytest.Pytester) -> None:
    """``--case`` runs exactly the case that is given, whatever Hypothesis would draw."""
    found = records(few, "-k", "draws", "--case", json.dumps({"case": "Digit", "digit": 7}))
    assert [(record.verdict, record.examples) for record in found] == [(Verdict.PASS, 1)] * 2


def test_a_profile_says_how_many_cases_are_drawn(few: pytest.Pytester) -> None:
    """The quick profile draws two cases."""
    assert [record.examples for record in records(few, "-k", "draws")] == [2, 2]


def test_other_tests_are_left_alone(few: pytest.Pytester) -> None:
    """A test that is no requirement runs as ever, loads no subject and writes no row."""
    path = few.makepyfile(test_other="def test_other(): pass")
    result = few.runpytest_inprocess(path, "--implementation", "nobody", "--record", "record.jsonl")
    result.assert_outcomes(passed=1)
    assert not (few.path / "record.jsonl").exists()
