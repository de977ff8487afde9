"""Scenarios cover every pair, say why they cannot be, and a failure is reduced to its cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, count
from typing import Any

import pytest
import torch
from hypothesis import given

from harness.data.case import from_text
from harness.trial import Excluded, Trial
from harness.trial.shrinking import Shrinking
from harness.vendor import Feature
from harness.vendor.load import Subject
from harness.worlds.base import SubjectFailure
from suites.catalogue import entries
from suites.interactions import covering as searching
from suites.interactions import judging
from suites.interactions.covering import CLOSE, PLACES, available, combined, completed, covering, scenarios
from suites.interactions.excluded import VALUES, excluded
from suites.interactions.judging import Cause, isolated, search
from suites.oracle.expected import expected
from suites.oracle.unsharded import played
from suites.scenarios.dimensions import DEFAULTS, DIMENSIONS
from suites.scenarios.rules import APART, IMPOSSIBLE, Rule, barred, conflict
from suites.scenarios.scenario import Scenario, with_values

ALL = frozenset(Feature)
RICH = Scenario(net="tied", runs="twice", recompute="block", prefetch="forward", optimizer="Adam", rows="uneven")


def pairs_of(found: Iterable[Scenario]) -> set[Any]:
    """Every two values that one of the scenarios has."""
    return {pair for one in found for pair in combinations(one.values.items(), 2)}


def possible_pairs(values: Any) -> set[Any]:
    """Every two values that go together."""
    return {pair for pair in combined(values, 2) if completed(pair, values) is not None}


@pytest.mark.parametrize("claims", [ALL, frozenset({Feature.FULLY_SHARD, Feature.STATE_DICT})])
def test_every_pair_that_some_scenario_has_is_covered(claims: frozenset[Feature]) -> None:
    """A pair of values is missing only if no scenario has it, and values that are not claimed are nowhere."""
    found = covering(claims, ranks=4)
    assert pairs_of(found) == possible_pairs(available(claims, 4))
    assert all(one.needs <= claims for one in found)


def test_what_cannot_be_is_found_out_before_much_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where claims leave a dimension one value, those that cannot go with it end no long search."""
    looked_at = count()
    monkeypatch.setattr(searching, "barred", lambda chosen: barred(chosen) if next(looked_at) < 100_000 else "much")
    assert covering.__wrapped__(frozenset({Feature.FULLY_SHARD}), 4)
    assert next(looked_at) < 100_000


def test_triples_of_close_dimensions_are_covered_besides_all_pairs() -> None:
    """In a thorough run any three values of dimensions that concern one group come together, and any two of all."""
    found = covering(ALL, ranks=4, strength=3)
    values = available(ALL, 4)
    close = {name: values[name] for name in CLOSE}
    triples = {three for one in found for three in combinations([(name, one.values[name]) for name in CLOSE], 3)}
    assert triples == {three for three in combined(close, 3) if completed(three, values) is not None}
    assert pairs_of(found) == possible_pairs(values)


def test_fewer_ranks_and_single_values_take_fewer_scenarios() -> None:
    """Scenarios fit into the ranks that there are; those for each value alone are few."""
    assert {one.world_size for one in covering(ALL, ranks=2)} == {1, 2}
    assert len(covering(ALL, 4, strength=1)) < 20 < len(covering(ALL, 4))


def test_scenarios_for_single_values_are_on_every_mesh_with_every_parallelism() -> None:
    """Requirements are told apart by these, and each has a scenario."""
    values = {name: some for name, some in available(ALL, 4).items() if name in PLACES}
    assert pairs_of(covering(ALL, 4, strength=1)) >= possible_pairs(values)


@pytest.mark.parametrize("rule", [*IMPOSSIBLE, *APART], ids=lambda rule: str(dict(rule.values)))
def test_rules_name_values_that_there_are(rule: Rule) -> None:
    """A rule that excludes nothing, since it names what does not exist, would be a mistake."""
    assert all(set(values) <= {one.name for one in DIMENSIONS[name]} for name, values in rule.values.items())


def test_what_is_judged_apart_has_a_requirement() -> None:
    """Each combination that is left out of the covering array is what a requirement is about."""
    assert {rule.reason for rule in APART} <= {entry.requirement.id for entry in entries()}


def test_a_scenario_that_cannot_be_says_why() -> None:
    """Values that do not go together are refused with the reason, and unknown ones with those that there are."""
    with pytest.raises(ValueError, match="nothing but the root is there to prefetch"):
        Scenario(prefetch="both", wrapping="root")
    with pytest.raises(ValueError, match="expected net to be one of linear, attention"):
        Scenario(net="rnn")
    with pytest.raises(ValueError, match="a group has one axis"):
        from_text('{"case": "Scenario", "groups": "from group", "mesh": "2x2"}')


@given(case=scenarios())
def test_a_scenario_survives_json_and_reads_as_its_special_values(case: Scenario) -> None:
    """A scenario that is drawn is possible, can be replayed from a record, and prints what is special."""
    assert conflict(case.values) == ""
    assert with_values(case.special, case.seed) == case
    assert eval(repr(case), {"Scenario": Scenario}) == case


def test_a_failure_is_reduced_to_the_values_that_it_needs() -> None:
    """Of six special values the two that fail together remain, and the sentence says that either alone passes."""
    cause = isolated(RICH, lambda one: one.recompute == "block" and one.prefetch == "forward")
    assert cause.scenario == Scenario(recompute="block", prefetch="forward")
    assert str(cause) == "fails when recompute=block is combined with prefetch=forward; passes with either alone"
    assert str(isolated(RICH, lambda one: one.net == "tied")) == "fails with net=tied; passes without"
    assert str(isolated(RICH, lambda _: True)) == "fails with nothing special"


def test_what_takes_the_place_of_an_unclaimed_default_is_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the default dtype is not claimed, the first that is takes its place, and no cause names it."""
    monkeypatch.setattr(judging, "claims", lambda: ALL - {Feature.OTHER_DTYPES})
    cause = isolated(replace(RICH, dtype="float32"), lambda one: one.net == "tied")
    assert str(cause) == "fails with net=tied; passes without"
    assert cause.scenario == Scenario(net="tied", dtype="float32")


def test_what_one_cause_explains_is_tried_without_it() -> None:
    """Scenarios with a known cause are tried without it, so two causes are found, each with what it explains."""
    fails = [{"recompute": "block", "prefetch": "forward"}, {"net": "tied"}]
    tried: list[Scenario] = []

    def failure_of(one: Scenario) -> str | None:
        tried.append(one)
        return "failed" if any(bad.items() <= one.values.items() for bad in fails) else None

    found = covering(ALL, ranks=4)
    causes = search(found, failure_of)
    assert sorted((cause.scenario.special for cause in causes), key=len, reverse=True) == fails
    assert sum(causes.values()) > 2
    assert len(tried) < len(found) + 60


def test_a_scenario_that_fails_hides_no_other_pair() -> None:
    """After its cause is found, a scenario is tried without it, so each pair of other values is seen to pass."""
    bad = {"recompute": "block", "prefetch": "forward"}
    passed: set[tuple[tuple[str, str], ...]] = set()

    def failure_of(one: Scenario) -> str | None:
        if bad.items() <= one.values.items():
            return "failed"
        passed.update(combinations(one.values.items(), 2))
        return None

    search(covering(ALL, ranks=4), failure_of)
    hidden = possible_pairs(available(ALL, 4)) - passed
    assert tuple(bad.items()) in hidden
    assert [pair for pair in hidden if not set(pair) & set(bad.items())] == []


def test_a_value_that_needs_another_is_not_said_to_pass_alone() -> None:
    """What cannot be left out is named as needed, and the cause is the rest."""
    cause = Cause(Scenario(mesh="4", reshard="pairs"))
    assert cause.values == {"reshard": "pairs"}
    assert str(cause) == "fails with reshard=pairs, for which mesh=4 is needed; passes without"


@pytest.mark.parametrize(
    ("claims", "ranks"), [(ALL, 4), (ALL, 2), (frozenset({Feature.FULLY_SHARD, Feature.STATE_DICT}), 4)]
)
def test_every_pair_is_tried_or_has_a_reason(claims: frozenset[Feature], ranks: int) -> None:
    """What no scenario has is excluded: not claimed with the feature, beyond the ranks, apart, or impossible."""
    left_out = excluded(claims, ranks)
    had = pairs_of(covering(claims, ranks))
    for pair in combined(VALUES, 2):
        found = [one for one in left_out if one.values.items() and is_of(one, dict(pair))]
        assert (pair in had) != bool(found), (pair, found)
    assert {one.kind for one in left_out} <= {"impossible", "apart", "not claimed", "not run"}
    named = {one.why for one in left_out if one.kind == "not claimed"}
    assert ("needs CPU offload" in named) == (Feature.CPU_OFFLOAD not in claims)
    assert (("needs 4 ranks, and there are 2") in {one.why for one in left_out}) == (ranks == 2)


def is_of(one: Excluded, chosen: dict[str, str]) -> bool:
    """Whether a pair has such values of all dimensions that are named."""
    return all(chosen.get(name) in values for name, values in one.values.items())


def test_a_subject_that_fails_everything_is_one_cause() -> None:
    """Where nothing special is needed to fail, the first scenario is reduced and no other is tried."""
    tried: list[Scenario] = []
    causes = search(covering(ALL, ranks=4), lambda one: tried.append(one) or "failed")
    assert [str(cause) for cause in causes] == ["fails with nothing special"]
    assert list(causes.values()) == [1]
    assert len(tried) < 2 * len(DEFAULTS)


def test_where_nothing_smaller_is_wanted_the_first_failure_ends_the_test() -> None:
    """A waived requirement, or a mutant, takes as long as its first failing scenario: no cause is looked for."""
    tried: list[Scenario] = []

    def fails(trial: Trial, case: Scenario) -> None:
        tried.append(case)
        raise SubjectFailure("wrong", "disagreement")

    with pytest.raises(SubjectFailure, match=r"^wrong$"):
        judging.judge(Trial("threads", Subject(), 1, shrinking=Shrinking(0.0)), fails, lambda one: one.mesh == "1")
    assert len(tried) == 1


def test_the_oracle_trains_and_the_parts_make_up_the_whole() -> None:
    """In the oracle every step changes parameters, and ranks' parts together are the whole tensors."""
    case = Scenario(mesh="3", rows="uneven", optimizer="Adam")
    want, places = expected(case), [place for place, action in enumerate(case.actions) if action == "step"]
    before, after = (want.wide[place]["parameters"] for place in places[:2])
    assert all(not torch.equal(before[name], after[name]) for name in before)
    for name, full in after.items():
        parts = [want.on_rank(places[1], rank)["parameters"][name] for rank in range(3)]
        assert torch.equal(torch.cat(parts, case.cut_dim(name, tuple(full.shape))), full)


def test_frozen_and_deferred_gradients_are_not_there() -> None:
    """What is frozen has no gradient, and what is deferred is not looked at before the backward that reduces."""
    seen = played(Scenario(gradients="unsynchronised"))
    *waiting, reduced = [one for one in seen if "gradients" in one][:3]
    assert all("scale" not in one["gradients"].keys() | one["facts"].keys() for one in waiting)
    assert reduced["gradients"]["scale"] is not None
    frozen = played(Scenario(life="frozen and thawed"))
    gradients = [one["gradients"]["blocks.1.gain"] for one in frozen if "gradients" in one]
    assert [gradient is None for gradient in gradients[:3]] == [False, True, False]
