"""Mixed precision: computed in one dtype, reduced in another, kept in the parameters' own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.refusals import TYPE_ERRORS
from harness.vendor import Feature
from suites.kit import registered
from suites.kit.cases import Stack
from suites.kit.precision import SCALE, PrecisionCase, dtype_of
from suites.kit.precision_programs import LOW, PAIRS, dtypes_kept, precision_cases, rounding_cases, train
from suites.kit.strategies import each, examples, given, world_sizes
from suites.oracle.expected import Expected
from suites.oracle.judging import finds, follows_or_refuses, trains
from suites.passes.containers import MAKE
from suites.training.noting import NotingCase, ShardedNoting, UnshardedNoting, notes_agree, noting_cases
from suites.training.precision_values import (
    ALIKE,
    BUFFERS,
    INTEGERS,
    KEPT,
    NO_DTYPES,
    TABLE,
    BesideCase,
    Caching,
    assign,
    buffer_cases,
    cached,
    cached_on_ranks,
    expected_transforms,
    kept_cases,
    overridden,
    policies,
    table_cases,
    transformed,
)
from suites.training.structures import ONE_LAYER, CarriedCase, StructureCase, structure_cases

MIXED = (Feature.FULLY_SHARD, Feature.MIXED_PRECISION)
TWO_LAYERS = Stack(3, ("linear", "linear"))
RANKS = world_sizes(2, power_of_two=True)
TRANSFORMED = PrecisionCase(2, TWO_LAYERS, (0,), exact=True, steps=1, param_dtype="bfloat16", reduce_dtype="float32")
NESTED = StructureCase(1, ONE_LAYER, exact=True, param_dtype="float16", positional=(
    ("dataclass", ("namedtuple", ("tensor", "float32"), ("text", "a")), ("dict", ("tensor", "complex64"))),
    ("parameter", "float32"),
))  # fmt: skip
#: A tensor in containers of which it takes some care to make a like one.
SETS, DEFAULTS, OUTPUTS, DERIVED, HALFWAY = (
    replace(NESTED, positional=((kind, ("tensor", "float32"), *more),))
    for kind, *more in (
        ("set",),
        ("default dict",),
        ("output", ("text", "a")),
        ("derived", ("text", "a")),
        ("halfway", ("tensor", "float64")),
    )
)
CARRIED = CarriedCase(2, TWO_LAYERS, (0,), exact=True, steps=1, batch=2, param_dtype="bfloat16", reduce_dtype="float32")
LOW_ALONE = PrecisionCase(1, TWO_LAYERS, exact=True, param_dtype="bfloat16", reduce_dtype="bfloat16")


#: One weight, in low precision where it computes.
ONE_WEIGHT = PrecisionCase(
    2, Stack(1, ("linear",), multiplier=1, bias=False), exact=True, steps=1, batch=1, param_dtype="bfloat16"
)
#: Its gradients are summed in low precision.
ROUNDED = replace(ONE_WEIGHT, param_dtype=None, reduce_dtype="bfloat16", scales=(SCALE, 1.0))


@requirement("precision/exact", *MIXED, ranks=2)
@examples([replace(ONE_WEIGHT, param_dtype=param, reduce_dtype=reduce) for param, reduce in PAIRS])
@given(case=precision_cases())
def test_low_precision_computes_and_full_precision_keeps(trial: Trial, case: PrecisionCase) -> None:
    """Losses and gradients are those of parameters cast to param_dtype, and updates fall on the uncast parameters."""
    trains(trial, train, case)


@requirement("precision/reduce-dtype", *MIXED, ranks=2)
@example(case=ROUNDED)
@given(case=rounding_cases())
def test_gradients_are_summed_in_the_reduce_dtype(trial: Trial, case: PrecisionCase) -> None:
    """Sums over ranks are rounded as reduce_dtype rounds, whatever dtype the net was born in."""
    trains(trial, train, case)


@requirement("precision/hsdp", *MIXED, Feature.HSDP, ranks=2)
@example(case=replace(ROUNDED, mesh=(2, 1)))
@given(case=rounding_cases(replicas=True))
def test_replicas_are_summed_in_the_reduce_dtype(trial: Trial, case: PrecisionCase) -> None:
    """On a 2-D mesh sums over either axis are rounded as reduce_dtype rounds."""
    trains(trial, train, case)


@requirement("precision/general", *MIXED, ranks=2)
@example(case=PrecisionCase(2, TWO_LAYERS, (0,), param_dtype="bfloat16", reduce_dtype="float32", steps=3))
@given(case=precision_cases(exact=False, net=TWO_LAYERS, steps=3, world_size=RANKS))
def test_steps_that_low_precision_sees_are_seen(trial: Trial, case: PrecisionCase) -> None:
    """Training that low precision rounds everywhere follows explicit training in the same dtypes, beyond one step."""
    trains(trial, train, case)


@requirement("precision/layers", *MIXED, ranks=2)
@example(case=NotingCase(2, ONE_LAYER, (0,), exact=True, param_dtype="bfloat16"))
@given(case=noting_cases("plan"))
def test_layers_run_in_the_param_dtype(trial: Trial, case: NotingCase) -> None:
    """Layers run in param_dtype, in which unshard() registers parameters; inputs have gradients in their own dtype."""
    notes_agree(trial, case)
    low = {name: {"is": "a plain tensor", "local": p.to(case.compute)} for name, p in case.build().named_parameters()}
    finds(trial, registered.after, case, low, *registered.unshard_all(case))


@requirement("precision/autocast", *MIXED, ranks=2)
@given(case=noting_cases("autocast"))
def test_inputs_are_cast_under_autocast(trial: Trial, case: NotingCase) -> None:
    """Under autocast modules are given inputs in param_dtype all the same, and not as they come."""
    notes_agree(trial, case)


@requirement("precision/groups", *MIXED, ranks=2)
@given(case=noting_cases("grouped"))
def test_every_module_of_a_list_has_its_inputs_cast(trial: Trial, case: NotingCase) -> None:
    """Of modules sharded as one list each has its own inputs cast, also where what lies between them was not."""
    notes_agree(trial, case)


@requirement("precision/recomputed", *MIXED, ranks=2, source="B3")
@given(case=noting_cases("recomputed"))
def test_recomputation_sees_what_forward_saw(trial: Trial, case: NotingCase) -> None:
    """A module that is run again in backward sees inputs and parameters cast as in forward, and has its gradients."""
    notes_agree(trial, case)


@requirement("precision/kept-dtypes", *MIXED, ranks=2)
@example(case=ONE_WEIGHT)
@given(case=precision_cases(steps=1))
def test_what_rests_keeps_its_dtype(trial: Trial, case: PrecisionCase) -> None:
    """Parameters, gradients, optimizer state and state dict have the dtype that the parameters had."""
    want = {name: str(p.dtype) for name, p in case.build().named_parameters()}
    kinds = ("gradients", "parameters", "momenta", "state dict")
    finds(trial, dtypes_kept, case, dict.fromkeys(kinds, want))


@requirement("precision/inputs", *MIXED)
@example(case=NESTED)
@example(case=SETS)
@example(case=DEFAULTS)
@example(case=OUTPUTS)
@example(case=DERIVED)
@given(case=structure_cases())
def test_inputs_are_cast_wherever_they_lie(trial: Trial, case: StructureCase) -> None:
    """A module is given floating tensors in param_dtype, by place or by name, nested or not; the caller's stay."""
    notes_agree(trial, case)


@requirement("precision/own-fields", *MIXED)
def test_fields_that_a_constructor_does_not_take_are_cast_or_refused(trial: Trial) -> None:
    """A dataclass with a field that its constructor does not take has all fields cast, or an error names the field."""
    follows_or_refuses(trial, ShardedNoting.play, Expected(HALFWAY, UnshardedNoting), "field", "right")


@requirement("precision/uncast-inputs", *MIXED, Feature.INPUT_CASTING)
@example(case=replace(NESTED, cast=False))
@given(case=structure_cases(cast=False))
def test_inputs_are_left_alone_where_that_was_asked_for(trial: Trial, case: StructureCase) -> None:
    """With cast_forward_inputs=False a module is given its inputs as they are."""
    notes_agree(trial, case)


@requirement("precision/outputs", *MIXED)
@example(case=replace(NESTED, output_dtype="float64"))
@example(case=replace(NESTED, output_dtype="float64", cast=False))
@example(case=replace(NESTED, output_dtype="float32", widened=True))
@given(case=structure_cases(output_dtype=st.sampled_from([None, *LOW, "float64"]), widened=st.booleans()))
def test_outputs_are_cast_to_the_output_dtype(trial: Trial, case: StructureCase) -> None:
    """The caller is handed floating tensors in output_dtype, nested or not; without it, as modules and hooks do."""
    notes_agree(trial, case)


@requirement("precision/written", *MIXED)
def test_what_is_written_into_inputs_in_param_dtype_is_there(trial: Trial) -> None:
    """An input that has param_dtype is given as it is, be it contiguous or not: what forward writes into it stays."""
    finds(trial, cached_on_ranks, LOW_ALONE, cached(Caching(LOW_ALONE.build().to(LOW_ALONE.compute)), LOW_ALONE))


@requirement("precision/structures-between", *MIXED, ranks=2)
@each(CARRIED, kind=sorted(MAKE))
@given(case=precision_cases(CarriedCase, net=TWO_LAYERS, kind=st.sampled_from(sorted(MAKE))))
def test_structures_between_modules_carry_gradients(trial: Trial, case: CarriedCase) -> None:
    """Modules that hand each other tensors in nested dicts, tuples, dataclasses and named tuples train as any other."""
    trains(trial, train, case)


@requirement("precision/buffers", *MIXED)
@example(case=BesideCase(1, ONE_LAYER, exact=True, param_dtype="bfloat16", batch=2, norm="layer", buffers=BUFFERS))
@given(case=buffer_cases())
def test_buffers_are_never_cast(trial: Trial, case: BesideCase) -> None:
    """Buffers keep their dtype and values, in forward and after it; a norm beside them runs in param_dtype."""
    notes_agree(trial, case)


@requirement("precision/other-dtypes", *MIXED, ranks=2)
@each(replace(TABLE, param_dtype="bfloat16", reduce_dtype="float32"), other=INTEGERS)
@given(case=table_cases(low=True))
def test_what_is_not_floating_is_never_cast(trial: Trial, case: BesideCase) -> None:
    """A parameter of integers is sharded and gathered as it is beside floating ones, which are cast."""
    notes_agree(trial, case)


@requirement("precision/override", *MIXED, Feature.INPUT_CASTING, Feature.DTYPE_OVERRIDE, ranks=2)
@example(case=replace(KEPT, param_dtype="bfloat16", reduce_dtype="float32"))
@given(case=kept_cases())
def test_a_policy_may_keep_the_dtype_of_some_parameters(trial: Trial, case: BesideCase) -> None:
    """A parameter of which param_dtype_override_fn says its own dtype runs in that, beside others in param_dtype."""
    notes_agree(trial, case)


@requirement("precision/refuses-override", *MIXED, Feature.DTYPE_OVERRIDE)
@pytest.mark.parametrize("answer", NO_DTYPES)
def test_a_policy_has_no_third_dtype(trial: Trial, answer: str) -> None:
    """Where param_dtype_override_fn says neither param_dtype nor the parameter's own dtype an error names it."""
    trial.refuses(partial(overridden, answer=NO_DTYPES[answer]), LOW_ALONE, "param_dtype_override_fn", "param_dtype")


@requirement("precision/policy", *MIXED, Feature.INPUT_CASTING, Feature.OUTPUT_DTYPE)
@examples([replace(ONE_WEIGHT, param_dtype=param, reduce_dtype=reduce) for param, reduce in ALIKE])
@given(case=precision_cases(pairs=ALIKE, net=ONE_LAYER, steps=1))
def test_a_policy_is_what_it_was_made(trial: Trial, case: PrecisionCase) -> None:
    """A policy casts only inputs by default, and training leaves it as it was."""
    made = [str(dtype_of(case.param_dtype)), str(dtype_of(case.reduce_dtype)), "None", "True"]
    want = {"default": ["None", "None", "None", "True"], "before": made, "after": made}
    finds(trial, policies, case, want)


@requirement("precision/frozen-policy", *MIXED, level="may")
def test_a_policy_cannot_be_changed(trial: Trial) -> None:
    """To assign to a field of a policy raises an error."""
    trial.refuses(assign, LOW_ALONE, "reduce_dtype", "assign", "frozen", "set", error=("AttributeError", *TYPE_ERRORS))


# Levels of forward-mode differentiation are the process': ranks that are threads would be within each other's.
@requirement("precision/transforms", *MIXED, ranks=2, worlds=("processes",))
def test_function_transforms_go_through_sharded_modules(trial: Trial) -> None:
    """torch.func's jvp and vmap of a sharded net give the unsharded net's values, derivatives and gradients."""
    finds(trial, transformed, TRANSFORMED, partial(expected_transforms, TRANSFORMED))
