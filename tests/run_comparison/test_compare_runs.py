"""What differs between two runs: told by row, held against the run only where the baseline passed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from harness.data.text import visible
from harness.records.output import json_document
from harness.records.reader import Run
from harness.records.record import Record, Verdict
from harness.run_comparison.difference import Change, OneSided, compare
from harness.run_comparison.matching import name_of_test, parameters_of
from harness.run_comparison.report_text import text_of
from tests.report.report_samples import full_run, row, run_of
from tests.untrusted import harmless
from tests.untrusted.strategies import inputs
from tests.untrusted.test_records import any_runs

#: Every way a row can end: the seven verdicts, a stale waiver of a row that fails, missing, and no such row.
FAILS_STALE = "fails, its waiver ran out"
ENDS = [*map(str, Verdict), FAILS_STALE, "missing", ""]
PASSES = {"pass", "stale waiver"}
FAILS = {"fail", "waived", FAILS_STALE}


def side(end: str, name: str = "a") -> Run:
    """A run whose row ``name`` ends so, beside one that passes."""
    other = row("other")
    if end in ("", "missing"):
        plan = [other.nodeid, *([row(name).nodeid] if end else [])]
        return run_of(other, plan=plan)
    verdict = Verdict.STALE_WAIVER if end == FAILS_STALE else Verdict(end)
    cause = "disagreement" if end in FAILS else ""
    return run_of(row(name, verdict, cause=cause), other)


def change_of(was: str, now: str) -> tuple[Change, bool]:
    """What becomes of a row between two ends, and whether it counts."""
    found = compare(side(was), side(now))
    assert sum(found.counts.values()) == 2  # with one that passes in both
    return (found.rows[0].change, found.rows[0].counts) if found.rows else (Change.SAME, False)


@pytest.mark.parametrize(
    ("was", "now", "change"),
    [
        ("pass", "fail", Change.REGRESSED),
        ("pass", "broken", Change.REGRESSED),
        ("pass", FAILS_STALE, Change.REGRESSED),
        ("stale waiver", "fail", Change.REGRESSED),
        ("stale waiver", FAILS_STALE, Change.REGRESSED),
        ("pass", "missing", Change.LOST),
        ("not run", "missing", Change.LOST),
        ("pass", "waived", Change.EXCUSED),
        ("pass", "not run", Change.NO_LONGER_RUN),
        ("fail", "not claimed", Change.NO_LONGER_RUN),
        ("not run", "pass", Change.NEWLY_RUN),
        ("not run", "fail", Change.NEWLY_RUN),
        ("missing", "fail", Change.NEWLY_RUN),
        ("fail", "pass", Change.FIXED),
        ("waived", "stale waiver", Change.FIXED),
        ("broken", "pass", Change.FIXED),
        ("fail", "waived", Change.CHANGED),
        ("pass", "stale waiver", Change.CHANGED),
        ("missing", "not run", Change.CHANGED),
        ("not run", "not claimed", Change.CHANGED),
        ("pass", "", Change.REMOVED),
        ("", "fail", Change.ADDED),
        ("", "missing", Change.ADDED),
    ],
)
def test_a_row_is_of_the_kind_that_its_two_ends_make(was: str, now: str, change: Change) -> None:
    """Each pair of ends has the kind that a person would call it by."""
    assert change_of(was, now)[0] is change


@given(was=st.sampled_from(ENDS), now=st.sampled_from(ENDS))
def test_a_disagreement_counts_only_where_the_reference_passed(was: str, now: str) -> None:
    """Held against the run is a row that passed and now fails without excuse, is broken, or was never written."""
    if not was and not now:
        return
    change, counts = change_of(was, now)
    assert counts is (was in PASSES and now in (FAILS | {"broken", "missing"}) - {"waived"})
    assert (change is Change.SAME) is (was == now)


@given(end=st.sampled_from(sorted(set(ENDS) - {""})))
def test_every_end_passes_or_fails_or_neither(end: str) -> None:
    """What passed and what failed are told from the record alone; missing is neither."""
    records = [record for record in side(end).records if record.requirement == "sharding/a"]
    assert [record.passed for record in records] == [end in PASSES] * len(records)
    assert [record.failed for record in records] == [end in FAILS] * len(records)
    assert bool(records) is (end != "missing")


def test_missing_is_not_skipped() -> None:
    """A planned row without a record is told from one that was not run, whichever side it is on."""
    assert change_of("missing", "missing") == (Change.SAME, False)
    assert change_of("not run", "not run") == (Change.SAME, False)
    assert change_of("missing", "not run")[0] is not Change.SAME
    assert change_of("not run", "missing")[0] is not Change.SAME


# Which rows are the same.


@pytest.mark.parametrize(
    ("nodeid", "test", "parameters"),
    [
        ("a/b.py::test_x[threads]", "a/b.py::test_x", "threads"),
        ("a.py::Class::test_x[threads-a[0]::b]", "a.py::Class::test_x", "threads-a[0]::b"),
        ("a[1].py::test_x", "a[1].py::test_x", ""),
        ("odd", "odd", ""),
    ],
)
def test_a_node_id_is_taken_apart(nodeid: str, test: str, parameters: str) -> None:
    """Parameters begin at the first bracket behind the file."""
    assert (name_of_test(nodeid), parameters_of(nodeid)) == (test, parameters)


def moved(record: Record) -> Record:
    """The same row, of a test that was renamed and is in another file."""
    nodeid = record.nodeid.replace("t.py::", "else/where.py::renamed_")
    return replace(record, nodeid=nodeid)


def test_a_moved_test_is_no_difference() -> None:
    """Requirement, world and parameters are what a row is known by; its file and name are not."""
    rows = [row("a"), row("a", world="processes"), row("b", nodeid="t.py::b[threads-wide]"), row("b")]
    found = compare(run_of(*rows), run_of(*map(moved, reversed(rows))))
    assert (found.counts[Change.SAME], found.rows) == (4, [])
    names = {one.name for one in compare(run_of(), run_of(*rows)).rows}
    assert names == {
        "sharding/a in threads",
        "sharding/a in processes",
        "sharding/b in threads [wide]",
        "sharding/b in threads",
    }


def test_attached_ranks_are_held_against_processes() -> None:
    """A run on ranks that a launcher started is compared with one in processes, row by row, and it is said."""
    there = [row("a"), row("a", world="processes"), row("b", nodeid="t.py::b[processes-wide]", world="processes")]
    attached = [row("a", Verdict.FAIL, world="attached", cause="disagreement")]
    attached.append(row("b", nodeid="t.py::b[attached-wide]", world="attached"))
    found = compare(run_of(*there), run_of(*attached))
    told = {one.name: one.change for one in found.rows}
    assert told == {"sharding/a in processes": Change.REGRESSED, "sharding/a in threads": Change.REMOVED}
    assert found.counts[Change.SAME] == 1


def test_a_run_of_both_keeps_attached_ranks_and_processes_apart() -> None:
    """Where one run has rows of both worlds, each is held against its own."""
    both = [row("a", world="processes"), row("a", world="attached")]
    found = compare(run_of(*both), run_of(row("a", Verdict.FAIL, world="attached", cause="disagreement")))
    told = {one.name: one.change for one in found.rows}
    assert told == {"sharding/a in processes": Change.REMOVED, "sharding/a in attached": Change.REGRESSED}


@pytest.mark.parametrize("path", ["t.py", "moved.py"])
def test_a_row_that_was_never_written_is_the_one_it_would_have_been(path: str) -> None:
    """The requirement of a planned row is known from its test's rows in the other run, also if the file moved."""
    lost = f"{path}::a[threads]"
    found = compare(run_of(row("a"), row("b")), run_of(row("b"), plan=[lost, row("b").nodeid], status=None))
    [change] = [one for one in found.rows if one.counts]
    assert (change.name, change.baseline, change.candidate, change.nodeid) == (
        "sharding/a in threads",
        "pass",
        "missing",
        lost,
    )
    assert found.requirements.removed == ()


def test_a_planned_row_that_nobody_knows_goes_by_its_node_id() -> None:
    """Where neither run wrote a row of the test, the node id stands for it, in both runs alike."""
    runs = [run_of(row("b"), plan=["t.py::new[threads]", row("b").nodeid]) for _ in range(2)]
    assert compare(*runs).counts[Change.SAME] == 2
    assert {one.name for one in compare(run_of(), runs[0]).rows} == {"t.py::new[threads]", "sharding/b in threads"}


def test_rows_that_have_all_in_common_are_told_apart_by_name() -> None:
    """Two tests of one requirement are two rows, in whatever order they were written."""
    good, bad = row("a", nodeid="t.py::good[threads]"), row("a", Verdict.FAIL, nodeid="t.py::bad[threads]")
    assert compare(run_of(good, bad), run_of(bad, good)).counts[Change.SAME] == 2


@inputs(30)
@given(run=any_runs())
def test_a_run_is_the_same_as_itself(run: Run) -> None:
    """Whatever a record file holds, nothing differs between it and itself, and nothing that compares it runs it."""
    with harmless.harmless():
        same, other = compare(run, run), compare(full_run(), run)
        words = [text_of(one, whole=True) for one in (same, other)]
        documents = [json.loads(json_document(to_builtins(one))) for one in (same, other)]
    assert (same.rows, same.differs, same.regressions, same.drift) == ([], [], 0, [])
    assert (same.claims, same.requirements) == (OneSided((), ()), OneSided((), ()))
    assert all(visible(text) == text for text in words)
    assert documents[0]["rows"] == []
    assert len(documents[1]["rows"]) == sum(documents[1]["counts"].values()) - other.counts[Change.SAME]


# Beside the rows.


def test_versions_and_environment_come_first() -> None:
    """Who was judged, how and where is told before any row, each by name with both values."""
    reference = run_of(row("a"))
    header = replace(
        reference.header, implementation="mine 1", environment={"torch": "2.15", "CUDA": "13"}, claims=["HSDP"]
    )
    before = replace(reference.header, environment={"torch": "2.13", "NCCL": "2.29"}, claims=["replicate"])
    found = compare(replace(reference, header=before), replace(run_of(row("a", Verdict.FAIL)), header=header))
    assert [(fact.name, fact.baseline, fact.candidate) for fact in found.differs] == [
        ("implementation", "torch 2.13", "mine 1"),
        ("torch", "2.13", "2.15"),
        ("NCCL", "2.29", ""),
        ("CUDA", "", "13"),
    ]
    assert found.claims == OneSided(added=("HSDP",), removed=("replicate",))
    text = text_of(found)
    assert text.index("NCCL: 2.29 → –") < text.index("of the candidate only: HSDP") < text.index("1 result regressed")


def test_requirements_of_one_run_only_are_named() -> None:
    """Added and removed are requirements; a requirement of which rows are planned is there."""
    found = compare(run_of(row("a"), row("b")), run_of(row("b"), row("c")))
    assert found.requirements == OneSided(added=("sharding/c",), removed=("sharding/a",))


@pytest.mark.parametrize(
    ("was", "now", "drifts"),
    [(0.1, 0.2, True), (0.1, 0.19, False), (0.01, 0.1, False), (0.0, 0.11, True), (0.9, 0.1, False),
     (None, 0.5, False), (0.1, None, False)],
)  # fmt: skip
def test_a_row_nearer_to_its_bound_is_information(was: float | None, now: float | None, drifts: bool) -> None:
    """Worst ÷ allowed that grew twofold, and is above a tenth, is told of, and held against nobody."""
    found = compare(run_of(row("a", ratio=was)), run_of(row("a", ratio=now)))
    assert bool(found.drift) is drifts
    assert found.counts[Change.SAME] == 1
    assert found.regressions == 0


def test_a_row_that_fails_has_no_drift() -> None:
    """Beyond its bound a row fails, which is told as such."""
    assert compare(run_of(row("a", ratio=0.2)), run_of(row("a", Verdict.FAIL, ratio=9.0))).drift == []
