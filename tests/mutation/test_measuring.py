"""How the kill table is measured and made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.vendor.load import Subject
from tests.mutants import Fault, all_faults
from tests.mutation.judging import by_id
from tests.mutation.measure import (
    WORKERS,
    FirstRed,
    alone,
    first_of,
    first_red,
    in_a_run,
    in_run_order,
    with_what_is_said,
)
from tests.mutation.other_checks import CHECKS, missed_by
from tests.mutation.run import read, write
from tests.mutation.table import figures, table

FAULTS = {fault.id: fault for fault in all_faults()}


def fact(fault: str, killed_by: str, run_seconds: float | None, **more: Any) -> dict[str, Any]:
    """What was measured of a fault, as far as tables ask, with what the library says of it."""
    seen = {"id": fault, "world": "threads", "verdict": "fail", "seconds": 0.5, "examples": 1}
    run = {"run_killed_by": killed_by if run_seconds else "", "run_seconds": run_seconds, "run_rows": 3}
    others = {check: check == CHECKS[0] for check in CHECKS}
    return with_what_is_said(FAULTS[fault], {**seen, **run, "others": others, **more})


MEASURED = [
    fact("reductions.drops_rank_zero", "parity/exact", 0.5),
    fact("reductions.does_not_reduce", "meta/training", 70.0),
    fact("reductions.sums_from_three_ranks_on", "parity/general", None),
    fact("reductions.divides_twice", "", None, verdict="pass"),
]


def test_the_figures_are_those_of_the_rows() -> None:
    """Killed, by whom rightly, and how soon: what a table says is counted from its rows."""
    found = figures(MEASURED)
    assert (found["faults"], found["equivalent"], found["killed"]) == (4, 0, 3)
    assert (found["in a run"], found["attributed"], found["within a minute"]) == (4, 2, 1)
    assert (found["median seconds alone"], found["median seconds in a run"]) == (0.5, 35.25)


def test_what_was_put_before_no_run_counts_in_no_figure_of_one() -> None:
    """A fault of which only the requirement named for it was asked is caught, and says nothing of runs."""
    found = figures([*MEASURED, fact("reductions.divides_by_numel", "parity/exact", None, run_rows=None)])
    assert (found["faults"], found["killed"]) == (5, 4)
    assert (found["in a run"], found["attributed"], found["within a minute"]) == (4, 2, 1)


def test_the_page_says_what_survived_and_what_others_miss() -> None:
    """What nothing catches is in the page in so many words, as is how many the library has beside those measured."""
    page = "\n".join(table(MEASURED, 9))
    assert "So far 4 of the library's 9 faults are measured" in page
    assert "| `reductions.divides_twice` | A21 verl-project/verl-SpeCo#29 | **nothing** | no: `parity/exact` |" in page
    assert "| caught | 3 of 4 (75.0%) |" in page
    assert f"| {CHECKS[0]} | 0 | 4 (100%) |" in page
    assert "| these suites | 3 | 1 |" in page


def test_what_the_library_says_now_replaces_what_it_said_then() -> None:
    """A fact that was kept is told anew: who is right to catch a fault may have been settled since."""
    stale = {**MEASURED[0], "origin": "elsewhere", "named": "meta/training", "attributed": False}
    assert with_what_is_said(FAULTS[stale["id"]], stale) == MEASURED[0]


def test_what_was_measured_is_kept_whole_and_what_is_gone_is_not(tmp_path: Path) -> None:
    """Facts come back as they were written, in the library's order; those of a fault that is no more are left out."""
    kept = {one["id"]: one for one in reversed(MEASURED)} | {"gone.fault": {"id": "gone.fault"}}
    write(tmp_path / "facts.json", kept, list(FAULTS.values()))
    order = [id for id in FAULTS if id in kept]
    assert list(read(tmp_path / "facts.json").items()) == [(id, kept[id]) for id in order]
    assert read(tmp_path / "none.json") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


def test_a_fault_is_measured_as_a_run_would_find_it() -> None:
    """A sum for an average is caught by the first row of a run, by the requirement named for it, in a few cases."""
    fault = FAULTS["reductions.sums_for_averages"]
    first = first_red(fault, "disagreement", 0, lambda: False)
    seen = with_what_is_said(fault, {**alone(fault), **in_a_run(first)})
    assert (seen["killed"], seen["killed_by"], seen["attributed"], seen["run_rows"]) == (True, "parity/exact", True, 0)
    assert (seen["verdict"], seen["cause"]) == ("fail", "disagreement")
    assert 1 <= seen["examples"] <= 5
    assert seen["case"]["world_size"] == 2
    assert seen["others"] == {CHECKS[0]: True, CHECKS[1]: True, CHECKS[2]: False}


def test_workers_share_a_run_and_the_first_to_find_something_ends_it() -> None:
    """Two workers have every other row each; what a run says is what either found first, or that neither did."""
    fault = FAULTS["reductions.sums_for_averages"]
    assert first_red(fault, "disagreement", 1, lambda: False).requirement == "parity/general"
    over = [first_red(fault, "disagreement", worker, lambda: True) for worker in range(WORKERS)]
    rows = len(list(in_run_order(fault, "threads")))
    assert (first_of(over).requirement, first_of(over).rows) == ("", rows)
    late, soon = FirstRed("meta/training", 3.0, 40), FirstRed("parity/exact", 0.5, 1)
    assert first_of([late, soon]) == first_of([over[0], soon]) == soon


def test_right_subjects_are_missed_by_the_checks_of_others() -> None:
    """The checks that the suites are compared with pass what is right, so that what they catch is a catch."""
    assert missed_by(Subject("reference", "gloo")) == dict.fromkeys(CHECKS, True)


def test_what_torch_fails_itself_kills_nothing() -> None:
    """A run of the kill table leaves out what is waived for torch, as it does what two ranks cannot try."""
    tried = {entry.requirement.id for entry in in_run_order(FAULTS["reductions.sums_for_averages"], "threads")}
    assert tried < set(by_id())
    assert not tried & {"replicate/nested", "scripts/thawed-precision", "collectives/strided-others"}


def test_what_is_right_to_catch_a_fault_is_named_by_what_it_starts_with() -> None:
    """Right is one of the chapter of the one named, or one of those named beside it, or one on training as a whole."""
    fault = Fault("a.b", "a:b", "implementation", "hsdp/general", "", ("threads",), False, ("stress/", "events/once"))
    right = ("hsdp/general", "hsdp/exact", "stress/late", "events/once", "parity/exact", "scripts/train")
    assert all(fault.is_rightly_caught_by(one) for one in right)
    assert not any(fault.is_rightly_caught_by(one) for one in ("", "events/other", "hsdp2/general", "meta/parity/"))


def test_what_is_saved_is_one_thing_from_several_sides() -> None:
    """A fault of state that one chapter on it names is rightly caught by another one."""
    fault = Fault("a.b", "a:b", "implementation", "state-matrix/shards", "", ("threads",), False)
    assert fault.is_rightly_caught_by("optimizer-state/by-name")
    assert not fault.is_rightly_caught_by("registration/replaced")


def test_training_as_a_whole_does_not_tell_of_what_has_no_numbers() -> None:
    """A fault that breaks a refusal, or a count of bytes, is not rightly caught by wrong numbers, unless it says so."""
    fault = Fault("a.b", "a:b", "implementation", "refusals/list-as-root", "", ("threads",), True)
    assert not fault.is_rightly_caught_by("parity/exact")
    assert fault.is_rightly_caught_by("refusals/list-as-root")
