"""Parameters unlike others: frozen, tied, ignored, or of another dtype than what they are sharded with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack
from suites.oracle.expected import expected
from suites.oracle.judging import follows
from suites.parameters.parameters import (
    TWO,
    ParameterCase,
    ShardedParameters,
    elements_reduced,
    frozen_cases,
    ignored_cases,
    is_plain,
    parameter_cases,
)
from suites.training.noting import notes_agree
from suites.training.precision_values import BesideCase, table_cases

WEIGHTS = (("1.weight", "0.weight"),)
CALLS = [(True, True), (False, True), (True, False)]
RICH = ParameterCase(2, Stack(3, TWO), (0, 1), "float64", exact=True, reshard_after_forward=True)
#: Two weights of 128 elements each, and biases of 24 together.
FROZEN_WEIGHTS = replace(
    RICH, net=Stack(8, ("mlp",)), sharded=(0,), frozen=(("0.in_proj.weight", "0.out_proj.weight"),)
)


@requirement("parameters/frozen", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(RICH, frozen=(("0.weight",),) * 2))
@given(case=frozen_cases())
def test_frozen_parameters_train_as_unsharded(trial: Trial, case: ParameterCase) -> None:
    """Parameters frozen before or after sharding, beside trainable ones, have no gradient; all others the right one."""
    follows(trial, ShardedParameters.play, expected(case))


@requirement("parameters/frozen-by-turns", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(RICH, frozen=(("0.weight",), (), ("1.weight", "1.bias")), steps=3, silent=(1,)))
@given(case=frozen_cases(steps=3, changing=True))
def test_freezing_can_change_between_steps(trial: Trial, case: ParameterCase) -> None:
    """What is frozen or unfrozen between steps is so from the next forward, whatever forward without gradients ran."""
    follows(trial, ShardedParameters.play, expected(case))


@requirement("parameters/called-again", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(RICH, frozen=(("0.weight",),) * 2, calls=(False, True)))
@example(case=replace(RICH, frozen=(("0.weight",),) * 2, calls=(True, True)))
@given(case=st.sampled_from(CALLS).flatmap(lambda calls: frozen_cases(blocks=TWO, calls=calls)))
def test_modules_may_run_several_times(trial: Trial, case: ParameterCase) -> None:
    """Modules with frozen parameters that run twice in a forward, with gradients once or twice, train as unsharded."""
    follows(trial, ShardedParameters.play, expected(case))


@requirement("parameters/all-frozen", Feature.FULLY_SHARD, ranks=2)
@given(case=parameter_cases(steps=1))
def test_a_net_that_is_frozen_entirely_runs(trial: Trial, case: ParameterCase) -> None:
    """A net of frozen parameters alone runs forward as the unsharded one does."""
    follows(trial, ShardedParameters.play, expected(replace(case, frozen=(tuple(case.parameter_names),))))


@requirement("parameters/frozen-not-reduced", Feature.FULLY_SHARD, ranks=2)
def test_frozen_parameters_are_not_reduced(trial: Trial) -> None:
    """A step with frozen weights hands fewer elements to reductions than one of these weights has."""
    for number, elements in enumerate(trial.run(elements_reduced, FROZEN_WEIGHTS)):
        trial.holds(elements < 128, f"rank {number}: expected fewer than 128 elements to be reduced, got {elements}")


@requirement("parameters/tied", Feature.FULLY_SHARD, ranks=2)
@given(case=parameter_cases(blocks=TWO, tied=WEIGHTS, sharded=()))
def test_tied_weights_in_one_group_stay_tied(trial: Trial, case: ParameterCase) -> None:
    """A weight that two modules of a group share has the sum of both gradients, and both modules see its updates."""
    follows(trial, ShardedParameters.play, expected(case))


@requirement("parameters/tied-in-a-list", Feature.FULLY_SHARD, ranks=2)
@given(case=parameter_cases(blocks=TWO, tied=WEIGHTS, sharded=(), grouped=True))
def test_tied_weights_in_a_list_of_modules_stay_tied(trial: Trial, case: ParameterCase) -> None:
    """A weight that modules of one list share trains as unsharded: every row on every rank, uneven ones too."""
    follows(trial, ShardedParameters.play, expected(case))


@requirement("parameters/tied-across-groups", Feature.FULLY_SHARD, ranks=2)
@given(case=parameter_cases(steps=1, blocks=TWO, tied=WEIGHTS, sharded=(0, 1)))
def test_weights_tied_across_groups_are_refused(trial: Trial, case: ParameterCase) -> None:
    """A weight that two modules share which are sharded separately raises ValueError by the first forward."""
    trial.refuses(ShardedParameters.play, case, "ValueError", "another")


@requirement("parameters/ignored", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS, ranks=2)
@given(case=ignored_cases())
def test_ignored_parameters_are_left_alone(trial: Trial, case: ParameterCase) -> None:
    """Ignored parameters stay what they were, in full, with each rank's own gradient; all others train as unsharded."""
    follows(trial, ShardedParameters.play, expected(case))


@requirement("parameters/ignored-stay", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS)
@given(case=ignored_cases())
def test_ignored_parameters_are_the_same_objects(trial: Trial, case: ParameterCase) -> None:
    """Sharding replaces every parameter but those ignored, wherever these are used."""
    for number, got in enumerate(trial.run(is_plain, case)):
        trial.agree(f"rank {number}, kept", got, {name: name in case.ignored for name in case.parameter_names})


@requirement("parameters/other-dtypes", Feature.FULLY_SHARD, ranks=2)
@given(case=table_cases(low=False))
def test_frozen_parameters_of_other_dtypes_share_a_group(trial: Trial, case: BesideCase) -> None:
    """A frozen parameter of another dtype, integers included, is sharded and gathered in it, beside trainable ones."""
    notes_agree(trial, case)
