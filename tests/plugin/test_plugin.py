"""The plugin in use: a run of a suite whose results end in every way, its record, and reproducing them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.records.reader import Run, missing, read_run
from harness.records.record import Record, Verdict
from harness.requirement import Requirement
from harness.submission.manifest import sha256
from harness.submission.runs import RUN_CHECKS, SubmittedRun
from harness.vendor.load import Subject, load_backend
from harness.waivers.waiver import waivers_in
from tests import ROOT as ROOT
from tests.patience import GUARD
from tests.plugin.samples import ENDS, WAIVERS

Completed = subprocess.CompletedProcess[str]
SUBJECT = ["--implementation", "tests.plugin.samples:implementation", "--backend", "tests.plugin.samples:backend"]


def pytest_run(*args: str, **variables: str) -> Completed:
    """A run of pytest in a process of its own, in the repository, with these environment variables besides."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=GUARD, check=False
    )


def samples_run(there: Path, *args: str) -> tuple[Completed, Run]:
    """The samples, run in both worlds with their waivers."""
    (there / "waivers.toml").write_text(WAIVERS)
    files = ["--waivers", str(there / "waivers.toml"), "--record", str(there / "record.jsonl")]
    return pytest_run("tests/plugin/samples.py", *SUBJECT, *files, *args), read_run(there / "record.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Completed, Run]:
    """The samples, run once in one process."""
    return samples_run(tmp_path_factory.mktemp("plugin"))


def one(run: Run, name: str, world: str) -> Record:
    """The one result of a requirement in a world."""
    [record] = [r for r in run.records if r.requirement == f"samples/{name}" and r.world == world]
    return record


@pytest.mark.parametrize(
    "places", [["suites/state"], ["suites/gradients/test_accumulation.py"], ["suites", "--ignore=suites/collectives"]]
)
def test_waivers_of_what_is_elsewhere_are_not_missed(places: list[str]) -> None:
    """Where a folder or file is named, or one is left out, a waiver of what another has is no problem of the run."""
    ended = pytest_run(
        *places, "--world", "threads", "-k", "no_such_test", "--implementation", "torch", "--backend", "gloo"
    )
    assert " deselected" in ended.stdout
    assert "matches no requirement" not in ended.stdout


@pytest.mark.parametrize("world", ["threads", "processes"])
@pytest.mark.parametrize("name", ENDS)
def test_a_result_ends_as_it_must(whole: tuple[Completed, Run], name: str, world: str) -> None:
    """Each way for a test to end has its verdict, cause and words, the same in both worlds."""
    record = one(whole[1], name, world)
    verdict, cause, words = ENDS[name]
    assert (record.verdict, record.cause) == (verdict, cause), record.message
    assert re.search(words, record.message)


def test_every_planned_result_is_recorded(whole: tuple[Completed, Run]) -> None:
    """Header, one result for each planned test, and a footer with what stands in the way of green."""
    run = whole[1]
    assert missing(run) == []
    assert len(run.records) == 2 * len(ENDS)
    assert run.footer is not None
    assert (run.footer.exit_status, len(run.footer.problems)) == (1, 1)


def test_a_run_passes_every_check_of_verify(whole: tuple[Completed, Run]) -> None:
    """What `verify` checks of a run holds for a real one whose results have every verdict."""
    waivers = WAIVERS.encode()
    given = SubmittedRun(whole[1], {sha256(waivers): waivers_in(waivers, "waivers")})
    assert [problem for check in RUN_CHECKS for problem in check(given)] == []


def test_workers_have_the_same_results(whole: tuple[Completed, Run], tmp_path: Path) -> None:
    """Under pytest-xdist one record file has the same plan, results, problems and status, and there is one terminal."""
    ended, run = samples_run(tmp_path, "--numprocesses", "2")
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
    """On an accelerator nothing is tried by several workers, and the reason is given."""
    here = Subject(SUBJECT[1], "tests.plugin.samples:device")
    found = Requirement("samples/any", (), "must", 1, (), ("threads",), "")
    verdict, why = LoadedSubject(here, (), workers=2).why_not(found, "threads") or (None, "")
    assert (verdict, why) == (Verdict.NOT_RUN, "2 workers would share cuda devices: run without --numprocesses")
    assert LoadedSubject(here, (), workers=1).why_not(found, "threads") is None


def test_what_a_backend_lacks_is_judged_on_the_fallback() -> None:
    """Only a lack leads there, not too few ranks: else a page could say of a backend what another has shown."""
    found = Requirement("samples/any", (), "must", 1, ("streams",), ("threads",), "")
    many = replace(found, limits=(), ranks=1000)
    here = LoadedSubject(Subject(SUBJECT[1], "gloo"), (), fallback="tests.plugin.samples:device")
    assert here.judging(found, "threads").backend.name == load_backend("tests.plugin.samples:device").name
    assert here.judging(many, "threads") is here
    assert here.judging(found, "attached") is here


def test_a_fallback_that_cannot_be_had_is_part_of_the_reason() -> None:
    """A result that is not run says why on both backends."""
    found = Requirement("samples/any", (), "must", 1, ("streams",), ("threads",), "")
    here = LoadedSubject(Subject(SUBJECT[1], "gloo"), (), fallback="nowhere:backend")
    _, why = here.why_not(found, "threads") or ("", "")
    assert why.startswith("needs streams")
    assert "; nor on the fallback: backend 'nowhere:backend': cannot import 'nowhere'" in why


def test_the_terminal_names_what_is_red_and_what_matches_nothing(whole: tuple[Completed, Run]) -> None:
    """A failing run exits with 1, counts verdicts, and names the waiver that matches nothing."""
    ended = whole[0]
    assert ended.returncode == 1
    assert "pass: 8  fail: 8  waived: 2  stale waiver: 4  not claimed: 4  not run: 8  broken: 6" in ended.stdout
    assert "problem: waiver for 'samples/nowhere' matches no requirement" in ended.stdout


@pytest.mark.parametrize("world", ["threads", "processes"])
def test_what_differs_is_recorded_of_all_ranks(whole: tuple[Completed, Run], world: str) -> None:
    """Of a comparison that failed on both ranks, the record has both, the sizes as numbers or none."""
    common = {"path": "", "got": "2.0", "want": "1.0", "off": 1.0, "allowed": 0.0, "ratio": None, "ulp": 2.0**-23}
    differences = one(whole[1], "disagrees", world).differences
    assert differences == [{"where": f"rank {number}", **common} for number in range(2)]
    assert one(whole[1], "passes", world).differences == []


@pytest.mark.parametrize("world", ["threads", "processes"])
def test_a_failing_case_is_run_again_and_heard(whole: tuple[Completed, Run], world: str) -> None:
    """The record says that it failed each time, and which collectives each rank issued; not of a hang, nor a pass."""
    record = one(whole[1], "disagrees", world)
    sum_of_two = {"op": "all_reduce", "bytes": 4, "dtype": "float32", "reduce": "SUM", "ranks": [0, 1]}
    assert (record.again, [lane[0] for lane in record.events]) == ("FF", [sum_of_two] * 2)
    assert (one(whole[1], "draws", world).again, one(whole[1], "draws", world).events) == ("FF", [[], []])
    for name in ("passes", "hangs", "known"):
        assert (one(whole[1], name, world).again, one(whole[1], name, world).events) == ("", [])


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
