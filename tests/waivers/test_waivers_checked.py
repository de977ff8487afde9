"""``fsdp-conformance waivers``: what is said of each waiver, and what the command says when it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.data.kinds import LEVELS, WORLDS
from harness.records.provenance import suites_folder
from harness.records.reader import Run
from harness.records.record import Verdict
from harness.requirements.finder import SuiteTest, left_out, suite_tests
from harness.waivers.check import SOON, Known, Weight, check
from harness.waivers.waiver import Waiver
from suites.catalogue import entries
from tests.report.report_samples import row, run_of
from tests.untrusted import harmless
from tests.untrusted.strategies import POISONS, TEXTS, inputs
from tests.untrusted.test_records import any_runs

TODAY = date(2026, 6, 15)
TESTS = (
    SuiteTest("sharding/a", "suites/t.py::a", WORLDS),
    SuiteTest("sharding/b", "suites/t.py::b", ("threads",)),
)


def waiver(requirement: str = "sharding/a", nodeid: str = "", subject: str = "torch", **more: Any) -> Waiver:
    """A waiver that holds for a year."""
    more = {"expires": TODAY + timedelta(365), **more}
    return Waiver(subject, "https://example.org/1", "known", requirement="" if nodeid else requirement,
                  nodeid=nodeid, **more)  # fmt: skip


def ran(*ends: Verdict, name: str = "a", version: str = "torch 2.13") -> Run:
    """A run of one requirement with a row for each end, in one world after the other."""
    told = {Verdict.FAIL: "disagreement", Verdict.WAIVED: "disagreement"}
    rows = [
        row(name, end, world=world, nodeid=f"suites/t.py::{name}[{world}]", cause=told.get(end, ""))
        for end, world in zip(ends, WORLDS, strict=False)
    ]
    run = run_of(*rows)
    environment = {"torch": "2.13.0+cpu"}
    return replace(run, header=replace(run.header, implementation=version, environment=environment))


def said(*waivers: Waiver, runs: Sequence[Run] = (), tests: Sequence[SuiteTest] | None = TESTS) -> list[str]:
    """The kind of each finding, of one waiver after the other."""
    return [finding.kind for finding in check(waivers, Known(tests, runs, TODAY))]


# Reading the suites.


def test_the_suites_are_read_as_they_collect_themselves() -> None:
    """Every requirement is found with its test and worlds, from the files alone."""
    folder = suites_folder()
    assert folder is not None
    found = {(t.requirement, t.nodeid, t.worlds) for t in suite_tests(folder)}
    assert found == {
        (e.requirement.id, f"{e.module.replace('.', '/')}.py::{e.test.__name__}", e.requirement.worlds)
        for e in entries()
    }


def test_what_a_run_leaves_out_is_counted_by_requirement() -> None:
    """Of the levels and worlds that were asked for, all that is not planned, whatever kept it out."""
    folder = suites_folder()
    assert folder is not None
    all_of_them = {test.requirement for test in suite_tests(folder)}
    assert left_out(folder, all_of_them, LEVELS, "both") == 0
    assert left_out(folder, all_of_them - {"parity/exact", "parity/general"}, LEVELS, "threads") == 2
    musts = {test.requirement for test in suite_tests(folder) if test.level == "must"}
    assert 0 < len(musts) < len(all_of_them)
    assert left_out(folder, musts, ("must",), "both") == 0
    of_processes = {test.requirement for test in suite_tests(folder) if "threads" not in test.worlds}
    assert left_out(folder, all_of_them - of_processes, LEVELS, "threads") == 0
    assert left_out(folder, all_of_them - of_processes, LEVELS, "processes") == len(of_processes) > 0


def test_a_file_that_is_no_python_is_told(tmp_path: Path) -> None:
    """A suite whose file cannot be read is named."""
    (tmp_path / "test_x.py").write_text("def (")
    with pytest.raises(ValueError, match=r"test_x\.py: cannot be read as a suite's file"):
        suite_tests(tmp_path)


# Whether a waiver is in order.


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        (waiver(), ["matches"]),
        (waiver("sharding/c"), ["matches nothing"]),
        (waiver(nodeid="suites/t.py::a[threads]"), ["matches"]),
        (waiver(nodeid="/opt/lib/suites/t.py::b[threads-wide]"), ["matches"]),
        (waiver(nodeid="suites/t.py::b[processes]"), ["matches nothing"]),
        (waiver(nodeid="suites/t.py::c[threads]"), ["matches nothing"]),
        (waiver(nodeid="moved/since/t.py::a[threads]"), ["matches"]),
        (waiver(expires=TODAY - timedelta(1)), ["expired"]),
        (waiver(expires=TODAY), ["expires soon"]),
        (waiver(expires=TODAY + timedelta(SOON)), ["expires soon"]),
        (waiver(expires=TODAY + timedelta(SOON + 1)), ["matches"]),
    ],
)
def test_a_waiver_is_held_against_suites_and_calendar(one: Waiver, kinds: list[str]) -> None:
    """Its requirement or row must be there, and its last day must not have passed; 30 days before, it is told."""
    assert said(one) == kinds


@pytest.mark.parametrize(
    ("runs", "kinds"),
    [
        ([ran(Verdict.FAIL, Verdict.WAIVED)], ["needed"]),
        ([ran(Verdict.WAIVED)], ["needed"]),
        ([ran(Verdict.PASS, Verdict.STALE_WAIVER)], ["stale"]),
        ([ran(Verdict.FAIL, Verdict.STALE_WAIVER)], ["too broad"]),
        ([ran(Verdict.FAIL), ran(Verdict.PASS, version="torch 2.15")], ["too broad"]),
        ([ran(Verdict.NOT_RUN, Verdict.BROKEN)], ["unused"]),
        ([ran(Verdict.FAIL, version="other 2")], ["unused"]),
        ([ran(Verdict.FAIL, version="torch_npu 2")], ["unused"]),
        ([ran(Verdict.PASS, name="b")], ["unused"]),
        ([ran(Verdict.NOT_RUN), ran(Verdict.FAIL)], ["needed"]),
    ],
)
def test_records_say_whether_a_waiver_is_needed(runs: list[Run], kinds: list[str]) -> None:
    """A row that fails needs it; one that passes makes it stale; both make it too broad; neither, unused."""
    assert said(waiver(), runs=runs) == kinds


@pytest.mark.parametrize(
    ("ends", "kinds"),
    [([Verdict.PASS], ["unused"]), ([Verdict.WAIVED], ["needed"]), ([Verdict.PASS, Verdict.WAIVED], ["needed"])],
)
def test_a_sporadic_waiver_may_meet_rows_that_pass(ends: list[Verdict], kinds: list[str]) -> None:
    """It is neither stale nor too broad for them; one that no row needed is unused."""
    assert said(waiver(sporadic=True), runs=[ran(*ends)]) == kinds


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        (waiver(versions="<2"), ["unused"]),
        (waiver(versions="==2.13.*"), ["needed"]),
        (waiver(subject="gloo"), ["needed"]),
        (waiver(subject="gloo", versions="==2.13.0"), ["needed"]),
        (waiver(subject="gloo", versions=">2.13"), ["unused"]),
        (waiver("sharding/c"), ["matches nothing"]),
        (waiver(nodeid="suites/t.py::a[threads]"), ["needed"]),
        (waiver(nodeid="suites/t.py::a[processes]"), ["unused"]),
    ],
)
def test_a_waiver_is_about_its_subject_and_versions(one: Waiver, kinds: list[str]) -> None:
    """As in a run: of the implementation in its version, or of the backend in torch's."""
    assert said(one, runs=[ran(Verdict.FAIL)]) == kinds


@pytest.mark.parametrize(("values", "kinds"), [({"net": "tied"}, ["needed"]), ({"net": "norms"}, ["stale"])])
def test_a_combination_is_needed_where_it_is_a_cause(values: dict[str, str], kinds: list[str]) -> None:
    """Whatever else passes in its chapter; where nothing fails for it, it is stale."""
    red = ran(Verdict.WAIVED, Verdict.PASS)
    first, *others = red.records
    causes = {"causes": [{"values": {"net": "tied", "mesh": "1"}}]}
    combined = replace(red, records=[replace(first, combinations=causes), *others])
    assert said(waiver("sharding/*", values=values), runs=[combined]) == kinds


def test_what_is_too_broad_is_told_by_row_or_by_version() -> None:
    """The rows that fail are named; where versions differ, versions are asked for."""
    [rows] = check([waiver()], Known(TESTS, [ran(Verdict.FAIL, Verdict.PASS)], TODAY))
    assert rows.weight is Weight.ERROR
    assert rows.words.endswith("of which 1 failed; name by nodeid what fails: suites/t.py::a[threads]")
    runs = [ran(Verdict.FAIL), ran(Verdict.PASS, version="torch 2.15")]
    assert check([waiver()], Known(TESTS, runs, TODAY))[0].words.endswith("give versions")
    assert check([waiver()], Known(TESTS, [runs[0], ran(Verdict.PASS)], TODAY))[0].words.endswith("find out why")


@pytest.mark.parametrize(
    ("first", "second", "twice"),
    [
        (waiver(), waiver(), True),
        (waiver(), waiver(versions="<2"), True),
        (waiver(versions="<2"), waiver(), False),
        (waiver(), waiver(nodeid="suites/t.py::a[threads]"), True),
        (waiver(nodeid="suites/t.py::a[threads]"), waiver(), False),
        (waiver(), waiver(subject="gloo"), False),
        (waiver(), waiver("sharding/b"), False),
    ],
)
def test_what_an_earlier_entry_covers_is_said_already(first: Waiver, second: Waiver, twice: bool) -> None:
    """A second waiver of the same rows would never be used."""
    assert said(first, second) == ["matches", "said already" if twice else "matches"]


def test_without_suites_records_alone_know_requirements() -> None:
    """A vendor's own suite need not be installed here; with neither, nothing is said to be wrong."""
    assert said(waiver(), tests=None) == ["not checked"]
    assert said(waiver(), waiver("sharding/c"), tests=None, runs=[ran(Verdict.FAIL)]) == ["needed", "matches nothing"]


def test_a_planned_row_that_was_never_written_is_a_row() -> None:
    """A run cut short does not make its waivers wrong."""
    run = replace(ran(Verdict.PASS, name="b"), footer=None)
    lost = replace(run, header=replace(run.header, plan=["x.py::lost[threads]"]))
    assert said(waiver(nodeid="x.py::lost[threads]"), runs=[lost]) == ["unused"]


@inputs(30)
@given(any_run=any_runs(), subject=st.sampled_from(["torch", "torch 2.13", "gloo", *POISONS]), name=TEXTS)
def test_whatever_records_say_each_waiver_is_told_of(any_run: Run, subject: str, name: str) -> None:
    """Each entry has findings, in lines that can be said, and nothing of a record runs."""
    waivers = [
        waiver(subject=subject),
        waiver(name or "x", subject=subject),
        waiver(nodeid=name),
        waiver("sharding/FAIL"),
    ]
    with harmless.harmless():
        lines = [str(one) for one in check(waivers, Known(TESTS, [any_run, ran(Verdict.FAIL)], TODAY))]
    assert {line.split()[2] for line in lines} == {"1", "2", "3", "4"}
    assert all(map(harmless.is_sentence, lines))
