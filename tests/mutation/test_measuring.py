"""How mutants are measured, and how the results are written and summarised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.vendor.load import Subject
from tests.mutants import Mutant, all_mutants
from tests.mutants.hooking import instead
from tests.mutants.making import mutant
from tests.mutation import measure
from tests.mutation.judging import by_id
from tests.mutation.measure import Result, in_run_order, measured
from tests.mutation.other_checks import killed_by_checks
from tests.mutation.page import attributed, badge, page, scored
from tests.mutation.run import read, write

MUTANTS = {mutant.id: mutant for mutant in all_mutants()}
SUMS, TWICE = MUTANTS["reductions.sums_for_averages"], MUTANTS["reductions.divides_twice"]
KILLED = Result(SUMS.id, "threads", 0.5, "parity/exact", 0, "..x")
NOT_IN_A_RUN = Result("reductions.sums_from_three_ranks_on", "threads", 0.7, "", None, "...")
SURVIVES = Result(TWICE.id, "threads", None, "", None, "...")
#: Fails by a TypeError, whatever it is given to load.
loads_nothing = mutant("optimizer-state/strict", after=instead("load_state_dict", lambda module, load: load({})))


def test_a_mutant_is_measured_as_a_run_would_find_it() -> None:
    """A sum for an average is killed by the first requirement of a run, in a few cases, by its wrong numbers."""
    result, details = measured(SUMS)
    assert result == KILLED._replace(seconds=result.seconds)
    assert (details["verdict"], details["cause"]) == ("fail", "disagreement")
    assert 1 <= details["examples"] <= 5
    assert details["case"]["world_size"] == 2


@pytest.mark.parametrize("raises", [False, True])
def test_code_that_goes_wrong_where_a_refusal_is_expected_is_no_kill(
    raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TypeError instead of the refusal fails the requirement, but kills no mutant, not even one that raises."""
    one = Mutant("a.b", f"{__name__}:loads_nothing", "implementation", "optimizer-state/strict", ("threads",), raises)
    monkeypatch.setattr(measure, "in_run_order", lambda _: [by_id()[one.killed_by]])
    result, details = measured(one)
    assert (details["verdict"], details["cause"]) == ("fail", "raised instead")
    assert not result.is_killed


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Results come back in the order of the mutants; those of a mutant that no longer exists are left out."""
    results = {one.id: one for one in (SURVIVES, NOT_IN_A_RUN, KILLED, KILLED._replace(id="no.such"))}
    write(tmp_path / "results.tsv", results, list(MUTANTS.values()))
    assert read(tmp_path / "results.tsv") == [results[id] for id in MUTANTS if id in results]
    assert read(tmp_path / "none.tsv") == []
    assert [path.name for path in tmp_path.iterdir()] == ["results.tsv"]


def test_the_score_leaves_out_equivalent_mutants() -> None:
    """A mutant that survives lowers the score, unless it is declared equivalent; the page then says why."""
    results, mutants = [KILLED, NOT_IN_A_RUN, SURVIVES], list(MUTANTS.values())
    assert scored(results, mutants) == {True: 2, False: 1}
    assert "| killed | 2 of 3 (mutation score 66.7%) |" in list(page(results, mutants))
    equivalent = [replace(one, why_equivalent="two is four" if one is TWICE else "") for one in mutants]
    assert scored(results, equivalent) == {True: 2}
    lines = list(page(results, equivalent))
    assert "| killed | 2 of 2 (mutation score 100.0%) |" in lines
    assert f"- `{TWICE.id}`: two is four" in lines
    assert ">2 of 2<" in badge(results, equivalent)


def test_the_page_counts_by_chapter_and_world_and_compares() -> None:
    """Mutants count for the chapter of the requirement named for them; each simpler check has what it kills."""
    lines = list(page([KILLED, NOT_IN_A_RUN, SURVIVES], list(MUTANTS.values())))
    assert "| parity | 2 of 3 | – |" in lines
    assert "| loss and parameters | 1 (33%) |" in lines
    assert "| not shown by two ranks | 2 |" in lines


def test_simpler_checks_find_nothing_wrong_with_a_correct_implementation() -> None:
    """The checks that the suites are compared with pass the reference, so what they kill counts."""
    assert killed_by_checks(Subject("reference", "gloo")) == "..."


def test_what_torch_fails_itself_kills_nothing() -> None:
    """A run leaves out what is waived for torch, and what two ranks cannot try."""
    tried = {entry.requirement.id for entry in in_run_order(SUMS)}
    assert tried < set(by_id())
    assert not tried & {"replicate/nested", "scripts/thawed-precision", "collectives/strided-others"}


def test_requirements_that_may_kill_a_mutant_are_named_by_prefix() -> None:
    """They are those of the chapter of the one named, those listed beside it, and those on training as a whole."""
    mutant = Mutant("a.b", "a:b", "implementation", "hsdp/general", ("threads",), False, ("stress/", "events/once"))
    right = ("hsdp/general", "hsdp/exact", "stress/late", "events/once", "parity/exact", "scripts/train")
    assert all(mutant.may_be_killed_by(one) for one in right)
    assert not any(mutant.may_be_killed_by(one) for one in ("", "events/other", "hsdp2/general", "meta/parity/"))
    assert attributed(KILLED, SUMS)
    assert attributed(SURVIVES, TWICE)
    assert not attributed(KILLED._replace(first="registration/replaced"), SUMS)


def test_related_chapters_may_kill_each_others_mutants() -> None:
    """A mutant of state that one chapter on it names may be killed by another one."""
    mutant = Mutant("a.b", "a:b", "implementation", "state-matrix/shards", ("threads",))
    assert mutant.may_be_killed_by("optimizer-state/by-name")
    assert not mutant.may_be_killed_by("registration/replaced")


def test_end_to_end_requirements_do_not_explain_what_has_no_numbers() -> None:
    """A mutant that breaks a refusal, or a count of bytes, is not rightly killed by wrong numbers."""
    mutant = Mutant("a.b", "a:b", "implementation", "refusals/list-as-root", ("threads",), raises=True)
    assert not mutant.may_be_killed_by("parity/exact")
    assert mutant.may_be_killed_by("refusals/list-as-root")
