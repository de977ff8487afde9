"""Cases that ask for what is not claimed are left out; a test of which none is left is not claimed."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption
from torch import nn

from harness.data.case import Case
from harness.records.record import Verdict
from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.trial import MOST_UNCLAIMED
from harness.trial.verdict import attempt, verdict_of
from harness.vendor import CORE, TORCH_FSDP2, Feature, Implementation
from harness.vendor.bounds import NotClaimed, asks_for, asks_for_method, claims, set_judged, whole, within_claims
from harness.vendor.features import NEEDS, lacking
from harness.vendor.load import Subject
from harness.worlds.base import SubjectFailure
from harness.worlds.rank import Rank
from reference_models.subject import implementation as reference
from suites.kit.cases import NetCase, Stack
from suites.oracle.layout import even
from tests import ROOT


@dataclass(frozen=True)
class Rows(Case):
    """A layer of so many rows."""

    rows: int = 4
    world_size: int = 2

    def fitted(self) -> Rows:
        """With even rows, from 100 on."""
        return replace(self, rows=even(self.rows)) if self.rows >= 100 else self


class Module(nn.Module):
    """What the implementation makes of modules."""


def _shard(module: Any, mesh: Any = None) -> Any:
    return module


few = Implementation(
    name="few",
    claims=frozenset({Feature.FULLY_SHARD}),
    fully_shard=_shard,
    not_claimed={Feature.UNEVEN_ROWS: "memory is aligned"},
)


def shards(rank: Rank, case: Rows) -> int:
    """Shard a layer; its rows."""
    rank.implementation.fully_shard(nn.Linear(1, case.rows))
    return case.rows


@requirement("sample/drawn")
@settings(max_examples=20, database=None)
@example(case=Rows(3))
@given(case=st.builds(Rows, st.integers(1, 8)))
def drawn(trial: Trial, case: Rows) -> None:
    """Rows are given back."""
    for found in trial.run(shards, case):
        trial.holds(found % 2 == 0, "even")


@requirement("sample/uneven")
@settings(max_examples=100, database=None)
@given(case=st.builds(Rows, st.integers(0, 40).map(lambda half: 2 * half + 1)))
def uneven(trial: Trial, case: Rows) -> None:
    """All of many are uneven."""
    for found in trial.run(shards, case):
        trial.holds(found % 2 == 1, "odd")


@requirement("sample/partly")
@settings(max_examples=20, database=None)
@given(case=st.builds(Rows, st.integers(0, 40).map(lambda half: 2 * half)))
def partly(trial: Trial, case: Rows) -> None:
    """Each is even, and comes in one message."""
    for found in trial.run(shards, case):
        trial.holds(found % 2 == 0, "even")
    asks_for(Feature.ONE_MESSAGE)


def trial_of(implementation: str = "few") -> Trial:
    """A trial of an implementation here, in threads."""
    return Trial("threads", Subject(f"tests.trial.test_claims:{implementation}", "gloo"), 2)


@pytest.mark.parametrize(("test", "verdict"), [(drawn, Verdict.PASS), (uneven, Verdict.NOT_CLAIMED)])
def test_cases_beyond_the_claims_are_left_out(test: Any, verdict: Verdict) -> None:
    """Of a test some cases are judged; one without any is not claimed, with the implementation's reason."""
    trial = trial_of()
    found = verdict_of(attempt(lambda trial: test(trial=trial), trial), trial)
    assert found[0] is verdict
    assert trial.facts.unclaimed[Feature.UNEVEN_ROWS] > 0
    assert trial.facts.unclaimed.total() <= MOST_UNCLAIMED
    assert found[1] == ("uneven rows: memory is aligned" if verdict is Verdict.NOT_CLAIMED else "")


def test_what_was_compared_before_something_unclaimed_counts() -> None:
    """A test whose cases all end with what is not claimed passes by the rest, on no more cases than were wanted."""
    trial = trial_of()
    assert attempt(lambda trial: partly(trial=trial), trial) is None
    assert trial.facts.unclaimed[Feature.ONE_MESSAGE] == trial.facts.examples == 20


def test_a_case_is_fitted_before_it_is_run() -> None:
    """What a class changes so that nothing unclaimed is asked for is what ranks get and the record shows."""
    trial = trial_of()

    @requirement("sample/fitted")
    def fitted(trial: Trial, case: Rows) -> None:
        trial.holds(trial.run(shards, case) == [104, 104], "rounded up")

    with trial.offering():
        fitted(trial=trial, case=Rows(101))
    trial.close()
    assert trial.facts.case == Rows(104)


def asks_for_messages(rank: Rank, case: Rows) -> None:
    """Ask for a feature that functions are not looked at for."""
    asks_for(Feature.ONE_MESSAGE)


uneven_too = replace(few, claims=few.claims | {Feature.UNEVEN_ROWS}, not_claimed={})
nearly_all = replace(reference, claims=reference.claims - {Feature.ONE_MESSAGE})


def test_any_feature_may_be_asked_for_on_ranks() -> None:
    """Whatever else is claimed, a rank that asks for one that is not ends its case, and fails nothing."""
    trial = trial_of("nearly_all")
    with trial.offering(), pytest.raises(NotClaimed, match="one message"):
        trial.run(asks_for_messages, Rows())
    trial.close()


def test_what_is_asked_for_is_counted_by_how_cases_end() -> None:
    """Also on ranks whose implementation claims it; a case that does not ask for it counts without it."""
    trial = trial_of("uneven_too")
    with trial.offering():
        for rows in (4, 3, 8):
            with suppress(SubjectFailure), trial.collecting_failures():
                trial.holds(trial.run(shards, Rows(rows)) == [4, 4], "four rows")
    trial.close()
    assert trial.facts.asked == {"": {"pass": 1, "fail": 2}, "uneven rows": {"fail": 1}}


def test_what_is_asked_here_is_rejected_too() -> None:
    """A test that asks for a feature in the controller, and not on ranks, is rejected as well."""
    trial = trial_of()
    with trial.offering(), pytest.raises(UnsatisfiedAssumption), trial.collecting_failures():
        asks_for_method("set_is_last_backward")
    assert trial.facts.unclaimed == {Feature.LAST_BACKWARD: 1}


def test_functions_refuse_what_is_not_claimed() -> None:
    """Lists, uneven rows and dtypes of policies end with NotClaimed before the implementation sees them."""
    policy = replace(few, mixed_precision_policy=lambda **given: given)
    before = set_judged(policy)
    bounded = within_claims(policy, 2)
    try:
        assert bounded.fully_shard is not None
        assert bounded.mixed_precision_policy is not None
        assert bounded.mixed_precision_policy(reduce_dtype=torch.float32) == {"reduce_dtype": torch.float32}
        for given in ({"param_dtype": torch.float32}, {"output_dtype": torch.float32}):
            with pytest.raises(NotClaimed):
                bounded.mixed_precision_policy(**given)
        with pytest.raises(NotClaimed, match="lists of modules"):
            bounded.fully_shard([nn.Linear(2, 2)])
        net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
        with pytest.raises(NotClaimed, match="uneven rows"):
            bounded.fully_shard(net)
        bounded.fully_shard(net[0])
        with pytest.raises(NotClaimed, match="other dtypes than float32"):
            bounded.fully_shard(nn.Linear(2, 2, dtype=torch.float64))
    finally:
        set_judged(*before)


def test_cases_are_of_float32_where_nothing_else_is_claimed() -> None:
    """Not those whose sums are exact in float64 alone: they are left out."""
    before = set_judged(few)
    try:
        dtypes = [
            NetCase(2, Stack(2, ("linear",)), dtype="float64", exact=exact).fitted().dtype for exact in (True, False)
        ]
    finally:
        set_judged(*before)
    assert dtypes == ["float64", "float32"]


def test_only_ranks_ask_the_implementation_for_whole_tensors() -> None:
    """In the process that judges all tensors are whole, and no other rank to gather from."""
    asked = []
    subject = replace(few, whole=lambda tensor, _: asked.append(tensor) or tensor)
    before = set_judged(subject)
    try:
        whole(torch.ones(1), None)
        assert not asked
        within_claims(subject, 2)
        whole(torch.ones(1), None)
        assert len(asked) == 1
    finally:
        within_claims(few, 2)
        set_judged(*before)


def test_what_is_sharded_already_is_not_looked_at_again() -> None:
    """A root whose uneven part is left to others is even."""
    everything = replace(few, claims=few.claims | {Feature.UNEVEN_ROWS})
    before = set_judged(everything)
    try:
        bounded = within_claims(replace(everything), 2)
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        assert bounded.fully_shard is not None
        bounded.fully_shard(net[0])
        set_judged(few)
        bounded.fully_shard(net)
    finally:
        set_judged(*before)


def test_nothing_bounds_what_is_asked_outside_of_runs() -> None:
    """Where no implementation is judged, everything is claimed; bundles are sets to add to and take from."""
    assert claims() == frozenset(Feature)
    assert CORE < TORCH_FSDP2 < frozenset(Feature)
    assert TORCH_FSDP2 - {Feature.HSDP} | {Feature.WRAP_POLICY} == frozenset(Feature) - {Feature.HSDP}


def test_all_that_suites_use_of_an_implementation_is_needed_by_a_claim() -> None:
    """So a claim whose function is missing is refused before the run; what has a default need not be given."""
    used = {name for path in (ROOT / "suites").rglob("*.py") for name in re.findall(USED, path.read_text())}
    needed = {name for names in NEEDS.values() for name in names}
    assert used - needed <= {"state_dicts", "sums_gradients", "whole", "name", "claims"}
    assert needed <= {*Implementation.__dataclass_fields__}
    without = replace(reference, offload_policy=None, shard_mesh_info=None)
    assert lacking(without, Feature.CPU_OFFLOAD) == "Implementation.offload_policy"
    assert lacking(without, Feature.PARAMETER_MESH) == "Implementation.shard_mesh_info"


#: What a program reads of the implementation that is judged.
USED = r"\bimplementation\.([a-z_]+)"
