"""Composition: ``fully_shard``, ``replicate`` and ``checkpoint`` on one net, explicitly and by policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example
from hypothesis import strategies as st
from torch import Tensor

from harness.data.comparison import exact
from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.composition import recompute
from suites.composition.compose import NESTINGS, Call, ComposedCase, first_names, forms, forms_after_forward, nesting
from suites.composition.compose_programs import Composed, of_another_shape, of_full_type, state_of_each_type, trains
from suites.composition.compose_strategies import (
    PLACES,
    ROOTED,
    SMALL,
    THREE,
    UNITS,
    applying,
    composed,
    inside_sharded,
    nestings,
    one_of_each,
    same_module,
    siblings,
    some,
    strategy_cases,
    under_root,
)
from suites.composition.recompute import RecomputeCase, cast_cases
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import each, given, stacks, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import finds, sees
from suites.oracle.situation import PASS

BY_POLICY = Feature.WRAP_POLICY
RECOMPUTED = (Feature.FULLY_SHARD, Feature.CHECKPOINT)
MIXED = (Feature.FULLY_SHARD, Feature.REPLICATE)
LOW = (Feature.FULLY_SHARD, Feature.MIXED_PRECISION)

#: Two ranks and two steps in float64: the least that shows what one step or a rounding hides.
PLAIN = ComposedCase(world_size=2, net=SMALL, dtype="float64", steps=2)
OWN = replace(PLAIN, net=replace(SMALL, own=True))
#: The strategies that need one axis alone.
BY_STRATEGY = tuple((Call(strategy, "", "Unit"),) for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"))
TWO_BLOCKS = (Call("fully_shard", "0"), Call("fully_shard", "1"))
BY_UNITS = (*(Call("fully_shard", unit) for unit in UNITS), Call("fully_shard"))
RECOMPUTE_INNER = tuple(Call("checkpoint", f"{unit}.0") for unit in UNITS)


@requirement("composition/checkpoint-same-module", *RECOMPUTED, ranks=2, source="B1")
@example(case=replace(PLAIN, calls=(Call("checkpoint", "1"), Call("fully_shard", "1", "Linear"))))
@given(case=composed(same_module()))
def test_checkpoint_and_fully_shard_on_one_module_train_as_unsharded(trial: Trial, case: ComposedCase) -> None:
    """Given to both checkpoint and fully_shard, in either order, a module trains as the plain one."""
    trains(trial, case)


@requirement("composition/checkpoint-inside", *RECOMPUTED, ranks=2, source="B2")
@example(case=replace(PLAIN, calls=(*(Call("fully_shard", unit) for unit in UNITS), *RECOMPUTE_INNER)))
@given(case=composed(inside_sharded()))
def test_checkpoint_inside_sharded_modules_trains_as_unsharded(trial: Trial, case: ComposedCase) -> None:
    """Sharded modules of which a part is recomputed train as the plain ones, with or without a sharded root."""
    trains(trial, case)


@requirement("composition/checkpoint-under-root", *RECOMPUTED, ranks=2, source="B5")
@example(case=replace(OWN, calls=(*RECOMPUTE_INNER, Call("fully_shard"))))
@given(case=composed(under_root("fully_shard"), net=ROOTED))
def test_checkpoint_under_a_sharded_root_trains_as_unsharded(trial: Trial, case: ComposedCase) -> None:
    """A sharded root with parameters of its own, and recomputed modules below, trains as the plain net."""
    trains(trial, case)


@requirement("composition/compiled", Feature.FULLY_SHARD, level="should", ranks=2)
@example(case=replace(OWN, route="compiled", calls=BY_UNITS))
@given(case=composed(some("fully_shard", UNITS), route="compiled", steps=1))
def test_modules_that_are_compiled_train_as_unsharded(trial: Trial, case: ComposedCase) -> None:
    """Modules that torch.compile has compiled in place before they are sharded train as the plain ones."""
    trains(trial, case)


@requirement("composition/adam", *RECOMPUTED, ranks=2, source="B0")
@example(case=replace(OWN, calls=(*RECOMPUTE_INNER, Call("fully_shard")), adam=True, set_to_none=False))
@example(case=replace(PLAIN, dtype="float32", calls=(Call("checkpoint", "1"), Call("fully_shard")), adam=True))
@given(case=composed(under_root("fully_shard") | inside_sharded(), adam=True, set_to_none=st.booleans()))
def test_adam_trains_composed_nets_as_unsharded_ones(trial: Trial, case: ComposedCase) -> None:
    """Adam, with gradients set to None or to zero between steps, trains a composed net as the plain one."""
    trains(trial, case)


@requirement("composition/nestings", *MIXED, ranks=2, source="B7")
@each(PLAIN, calls=NESTINGS.values())
@given(case=nestings())
def test_nestings_of_replicate_and_fully_shard_train_as_unsharded(trial: Trial, case: ComposedCase) -> None:
    """However replicate and fully_shard are nested, the loss, gradients and parameters are the plain net's."""
    trains(trial, case)


@requirement("composition/replicated-rest", *MIXED, ranks=2, source="B4")
@example(case=replace(OWN, calls=(*(Call("fully_shard", unit, "Linear") for unit in UNITS), Call("replicate"))))
@given(case=applying(Call("fully_shard", "1", "Linear"), Call("fully_shard", "2"), Call("replicate"), net=ROOTED))
def test_replicate_takes_what_is_outside_sharded_modules(trial: Trial, case: ComposedCase) -> None:
    """Above sharded modules, replicate keeps all other parameters whole, and only them, with averaged gradients."""
    sees(trial, Composed, case, PASS, forms=forms(case))
    trains(trial, case)


@requirement("composition/siblings", *MIXED, ranks=2, source="B6")
@example(case=replace(PLAIN, calls=(Call("fully_shard", "0"), Call("replicate", "1"), Call("fully_shard", "2"))))
@given(case=composed(siblings(), net=THREE))
def test_fully_shard_and_replicate_train_side_by_side(trial: Trial, case: ComposedCase) -> None:
    """Modules of one net given to fully_shard and to replicate, side by side, train as the plain ones."""
    trains(trial, case)


@requirement("composition/refuses-both", *MIXED, level="should", source="B6")
@given(case=composed(st.sampled_from(["", *PLACES]).map(lambda at: (Call("fully_shard", at), Call("replicate", at)))))
def test_replicate_refuses_what_is_sharded(trial: Trial, case: ComposedCase) -> None:
    """Given a module that is fully sharded, replicate raises an error that says what is in its way."""
    trial.refuses(Composed.play, case, "replicate", "fully_shard", "sharded", "FSDPModule")


@requirement("composition/casts", *RECOMPUTED, Feature.MIXED_PRECISION, ranks=2, source="B3")
@given(case=cast_cases())
def test_recomputation_casts_inputs_as_the_forward_did(trial: Trial, case: RecomputeCase) -> None:
    """Recomputed under mixed precision, each module meets inputs of the forward's dtype, and gradients are the same."""
    for number, (plain, recomputed) in enumerate(trial.run(recompute.both, case)):
        trial.agree(f"rank {number}", plain["runs"], recompute.expected_runs(case, recomputing=False))
        trial.agree(f"rank {number}, recomputing", recomputed["runs"], recompute.expected_runs(case, recomputing=True))
        trial.agree(f"rank {number}, results", recomputed["results"], plain["results"])


@requirement("composition/state-dict", *MIXED, Feature.STATE_DICT, ranks=2, source="B8")
@given(case=composed(one_of_each("fully_shard", "replicate")))
def test_state_dicts_of_mixed_nets_keep_the_forms_of_parameters(trial: Trial, case: ComposedCase) -> None:
    """After training, a state dict holds what is sharded as sharded tensors, and all else whole on every rank."""
    for number, got in enumerate(trial.run(Composed.seen, case, case.actions, "state")):
        saves(trial, f"rank {number}", case, got["state"], expected(case).trace(number)[-1]["parameters"])
        trial.agree(f"rank {number}, entries", {name: got["state"][name]["form"] for name in forms(case)}, forms(case))


@requirement("composition/policy-checkpoint", *RECOMPUTED, BY_POLICY, ranks=2, source="B1 B5")
@example(case=replace(PLAIN, calls=(Call("checkpoint", "1"), Call("FULL_SHARD", "1", "Linear"))))
@example(case=replace(OWN, calls=(*RECOMPUTE_INNER, Call("NO_SHARD"))))
@given(case=composed(same_module("FULL_SHARD", ["Linear"]) | under_root("NO_SHARD"), net=ROOTED))
def test_recomputed_modules_sharded_by_policy_train_as_unsharded(trial: Trial, case: ComposedCase) -> None:
    """A module given to checkpoint and, with a policy or under NO_SHARD, sharded by it or above trains as plain."""
    trains(trial, case)


@requirement("composition/policy-replicated-rest", *MIXED, BY_POLICY, ranks=2, source="B4")
@given(case=applying(*(Call("FULL_SHARD", unit, "Linear") for unit in UNITS), Call("replicate"), net=ROOTED))
def test_replicate_takes_what_is_outside_modules_sharded_by_policy(trial: Trial, case: ComposedCase) -> None:
    """Above modules sharded by policy, replicate keeps the other parameters whole, and averages their gradients."""
    sees(trial, Composed, case, PASS, forms=forms(case))
    trains(trial, case)


@requirement("composition/policy-nestings", *MIXED, BY_POLICY, ranks=2, source="B7")
@example(case=replace(PLAIN, calls=nesting("1r,1fa", by_policy=True)))
@example(case=replace(PLAIN, calls=nesting("1r1fa,1fm", by_policy=True)))
@example(case=replace(PLAIN, calls=(Call("fully_shard", "1"), Call("FULL_SHARD", chosen="Linear"))))
@given(case=nestings(by_policy=True))
def test_policies_leave_alone_what_was_taken_before(trial: Trial, case: ComposedCase) -> None:
    """A policy leaves alone what replicate or fully_shard has taken, and the nested net trains as the plain one."""
    trains(trial, case)


@requirement("composition/strategies", Feature.FULLY_SHARD, BY_POLICY, ranks=2, source="B1 B5")
@example(case=replace(PLAIN, calls=(Call("HYBRID_SHARD", "", "Unit"),), mesh=(2, 1)))
@each(PLAIN, calls=BY_STRATEGY)
@given(case=strategy_cases())
def test_every_strategy_trains_as_unsharded(trial: Trial, case: ComposedCase) -> None:
    """Under every strategy, with any policy, ranks hold the right parts of what the plain net's training gives."""
    trains(trial, case)


@requirement("composition/strategies-after-forward", Feature.FULLY_SHARD, BY_POLICY, ranks=2, source="B5")
@each(PLAIN, calls=BY_STRATEGY)
@given(case=strategy_cases(policy="Unit"))
def test_strategies_differ_in_what_they_keep_after_forward(trial: Trial, case: ComposedCase) -> None:
    """From forward to backward, SHARD_GRAD_OP and NO_SHARD keep all whole, the others have what a policy chose cut."""
    want = forms_after_forward(case)
    for number, got in enumerate(trial.run(Composed.seen, case, ("forward",), "forms")):
        trial.agree(f"rank {number}", {name: got["forms"][name] for name in want}, want)


@requirement("composition/strategies-state-dict", BY_POLICY, Feature.STATE_DICT, ranks=2, source="B8")
@example(case=replace(PLAIN, calls=(Call("FULL_SHARD", "1", "Linear"), Call("NO_SHARD", "2"))))
@example(case=replace(PLAIN, calls=(Call("fully_shard", "1"), Call("NO_SHARD"))))
@example(case=replace(PLAIN, calls=(Call("FULL_SHARD"),), route="tied"))
@example(case=replace(PLAIN, calls=(Call("FULL_SHARD"),), route="repeated"))
@example(case=replace(PLAIN, calls=(*TWO_BLOCKS, Call("FULL_SHARD")), route="listed"))
@given(case=composed(one_of_each("FULL_SHARD", "NO_SHARD")))
def test_the_type_of_state_dicts_is_set_and_read_back(trial: Trial, case: ComposedCase) -> None:
    """Sharded state dicts hold DTensors of what is sharded, full ones whole plain tensors only, and can be loaded."""
    want, of = expected(case), forms(case)
    cut = {name for name, first in first_names(case).items() if of[first] == "cut"}
    for number, found in enumerate(trial.run(state_of_each_type, case)):
        for asked, got in found.items():
            where, is_full = f"rank {number}, {asked}", got["type"] == "full"
            if asked != "not set":  # else the default, which is the implementation's choice
                trial.agree(f"{where}, type", got["type"], asked.partition(" ")[0])
            trial.agree(f"{where}, missing in nothing", sorted(got["missing"]), sorted(got["state"]))
            kinds = {name: "a DTensor" if name in cut and not is_full else "a plain tensor" for name in got["state"]}
            trial.agree(f"{where}, entries", {name: entry["is"] for name, entry in got["state"].items()}, kinds)
            last = want.whole[-1] if is_full else want.trace(number)[-1]
            saves(trial, where, case, got["state"], last["parameters"])


@requirement("composition/full-type", *LOW, BY_POLICY, Feature.STATE_DICT, ranks=2)
@example(case=TrainingCase(2, Stack(3, ("linear",)), sharded=(0,), reshard_after_forward=False))
@given(case=training_cases(dtype="float32", net=stacks(buffers=False)))
def test_full_state_dicts_have_what_rests(trial: Trial, case: TrainingCase) -> None:
    """Under a policy of bfloat16 full state dicts hold the numbers at rest, and give them back, also after changes."""
    state, names = dict(case.build().state_dict()), case.parameter_names
    finds(trial, of_full_type, case, [state, {name: -v if name in names else v for name, v in state.items()}, state])


@requirement("composition/full-type-shapes", Feature.FULLY_SHARD, BY_POLICY, Feature.STATE_DICT, ranks=2)
def test_full_state_dicts_of_another_shape_are_refused(trial: Trial) -> None:
    """A full state dict whose weights are transposed is refused by an error that says so, as by the unsharded net."""
    trial.refuses(of_another_shape, TrainingCase(2, Stack(2, ("mlp",)), sharded=(0,)), "size", "shape", "weight")


def saves(trial: Trial, where: str, case: ComposedCase, got: dict[str, Any], parameters: dict[str, Tensor]) -> None:
    """Compare what a state dict holds: parameters, by all names, within rounding, buffers exactly; nothing else."""
    buffers, named = dict(case.build().named_buffers()), first_names(case)
    trial.agree(f"{where}, names", sorted(got), sorted([*named, *buffers]))
    due: dict[str, Any]
    every = {name: parameters[first] for name, first in named.items()}
    for due, within in ((every, expected(case).within), (buffers, exact)):
        trial.agree(where, {name: got[name]["local"] for name in due}, due, within)
