"""The plugin on a small suite of a user's own: options, what is left out, what is tried again, what the user got wrong.

No rank runs here, so these runs share this process, except those with workers.
"""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from harness.records.reader import read_run
from harness.records.record import Record, Verdict
from tests.plugin.test_plugin import SUBJECT
from tests.report.report_samples import file_of, run_of
from tests.waivers.stanzas import stanza

pytest_plugins = ["pytester"]

SUITE = '''
from dataclasses import dataclass
from hypothesis import given, strategies as st
from harness.data.case import Case
from harness.requirement import requirement
from harness.vendor import Feature

@dataclass(frozen=True)
class Digit(Case):
    digit: int
    world_size: int = 1

@dataclass(frozen=True)
class Letter(Case):
    letter: str = "a"

tried = []

@requirement("few/must", Feature.FULLY_SHARD)
@given(case=st.builds(Digit, st.integers(0, 9)))
def test_draws(trial, case: Digit):
    """Digits are digits."""
    tried.append(case)
    trial.facts.begin(case, 1)
    trial.holds(case.digit < 10, "a digit")

@requirement("few/should", Feature.FULLY_SHARD, level="should", worlds=("threads",))
def test_holds(trial):
    """It holds."""
    trial.holds(True, "it holds")

@requirement("few/unclaimed", Feature.HSDP, level="may")
def test_unclaimed(trial, world_kind):
    """It holds."""
    trial.holds(world_kind == "threads", "in threads")
'''


@pytest.fixture
def few(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory of a user's own, with a small suite in it."""
    pytester.makeconftest('pytest_plugins = ["harness.pytest_plugin"]')
    pytester.makepyfile(test_few=SUITE, raises_on_import="raise RuntimeError('no driver')")
    pytester.syspathinsert()
    return pytester


def records(few: pytest.Pytester, *args: str) -> list[Record]:
    """The records of a run with these arguments."""
    few.runpytest_inprocess(*SUBJECT, "--record", "record.jsonl", *args)
    return read_run(few.path / "record.jsonl").records


@pytest.mark.parametrize(
    ("only", "left"),
    [("few", {"few/must", "few/should", "few/unclaimed"}), ("few/should,few/must", {"few/must", "few/should"})],
)
def test_only_what_is_named_is_judged(few: pytest.Pytester, only: str, left: set[str]) -> None:
    """Chapters and requirements, in any order; the others are left out, and the plan has none of them."""
    assert {record.requirement for record in records(few, "--only", only)} == left


def test_only_what_failed_is_judged_again(few: pytest.Pytester) -> None:
    """The red results of a record file: of a requirement that fails in one world, that world alone."""
    before = records(few)
    failed = [replace(record, verdict=Verdict.FAIL) if "processes" in record.nodeid else record for record in before]
    file_of(run_of(*failed), few.path / "failed.jsonl")
    again = records(few, "--failed", "failed.jsonl", "--level", "must")
    assert [record.nodeid for record in again] == ["test_few.py::test_draws[processes]"]


def test_a_run_without_failures_has_nothing_to_run_again(few: pytest.Pytester) -> None:
    """It is said in one sentence, and nothing is run."""
    assert not any(record.verdict.is_red for record in records(few))
    result = few.runpytest_inprocess(*SUBJECT, "--failed", "record.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --failed record.jsonl: no result is red there*"])


def test_waivers_beside_the_suites_are_read_without_being_named(few: pytest.Pytester) -> None:
    """Known failures that come with suites count in every run of them, so one that passes is stale."""
    (few.path / "waivers.toml").write_text(stanza("few/should", "sample"))
    [verdict] = {record.verdict for record in records(few, "-k", "holds")}
    assert verdict is Verdict.STALE_WAIVER


def test_a_run_that_tries_nothing_fails(few: pytest.Pytester) -> None:
    """Unclaimed results are no success: the run fails and says that nothing was tried."""
    result = few.runpytest_inprocess(*SUBJECT, "-k", "unclaimed")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["not claimed: 2", "problem: no requirement was tried"])


def test_a_green_run_exits_with_zero(few: pytest.Pytester) -> None:
    """What is not claimed does not stand in the way of green, and is counted."""
    result = few.runpytest_inprocess(*SUBJECT)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*FSDP conformance of sample on small*", "pass: 3  not claimed: 2"])


@pytest.mark.parametrize(("level", "results"), [("must", 2), ("should", 3), ("may", 5), ("all", 5)])
def test_a_level_leaves_out_what_is_less_strict(few: pytest.Pytester, level: str, results: int) -> None:
    """``--level should`` judges what must and what should be."""
    assert len(records(few, "--level", level)) == results


@pytest.mark.parametrize(("world", "results"), [("threads", 3), ("processes", 2), ("both", 5)])
def test_a_requirement_runs_in_the_worlds_that_it_is_about(few: pytest.Pytester, world: str, results: int) -> None:
    """A requirement has a result in each world that was asked for, except where it makes no sense."""
    found = records(few, "--world", world)
    assert len(found) == results
    assert {record.world for record in found} == ({"threads", "processes"} if world == "both" else {world})


def test_a_case_is_run_alone(few: pytest.Pytester) -> None:
    """``--case`` runs exactly the case that is given, whatever Hypothesis would draw."""
    found = records(few, "-k", "draws", "--case", json.dumps({"case": "Digit", "digit": 7}))
    assert [(record.verdict, record.examples) for record in found] == [(Verdict.PASS, 1)] * 2


def test_what_fails_only_at_times_is_told(few: pytest.Pytester) -> None:
    """A case that passes when it is run again has failed all the same, and the record says how often."""
    few.makepyfile(test_few=SUITE.replace("holds(True", "holds(tried or tried.append(1)"))
    [record] = records(few, "-k", "test_holds")
    assert (record.verdict, record.again) == (Verdict.FAIL, "PP")


def test_what_is_not_claimed_can_be_tried(few: pytest.Pytester) -> None:
    """``--unclaimed try`` says for each result whether it passes; it stays not claimed, and fails nothing."""
    found = records(few, "-k", "unclaimed or holds", "--unclaimed", "try")
    tried = [(record.world, record.verdict, record.tried, record.checks) for record in found if record.tried]
    assert tried == [("threads", Verdict.NOT_CLAIMED, "pass", 0), ("processes", Verdict.NOT_CLAIMED, "fail", 0)]
    assert few.runpytest_inprocess(*SUBJECT, "--unclaimed", "try").ret == pytest.ExitCode.OK
    assert {record.tried for record in records(few)} == {""}


def test_a_profile_says_how_many_cases_are_drawn(few: pytest.Pytester) -> None:
    """The quick profile draws two cases."""
    assert [record.examples for record in records(few, "-k", "draws")] == [2, 2]


def test_other_tests_are_left_alone(few: pytest.Pytester) -> None:
    """A test that is no requirement runs as ever, loads no subject and writes no record."""
    path = few.makepyfile(test_other="def test_other(): pass")
    result = few.runpytest_inprocess(path, "--implementation", "nobody", "--record", "record.jsonl")
    result.assert_outcomes(passed=1)
    assert not (few.path / "record.jsonl").exists()
