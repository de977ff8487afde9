"""Parameters unlike others: frozen, tied, ignored, or of another dtype than what they are sharded with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import example, given

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack, TrainingCase
from suites.oracle import judging
from suites.oracle.expected import expected
from suites.oracle.judging import finds
from suites.parameters.parameters import (
    AGAIN,
    ALL_FROZEN,
    BY_TURNS,
    FROZEN,
    SOME,
    TIED,
    TIED_IN_A_LIST,
    TURNS,
    IgnoredCase,
    Ignoring,
    elements_reduced,
    ignored_cases,
)
from suites.passes.pass_programs import follows, walk
from suites.passes.pass_strategies import HowCase, how_cases, pass_cases
from suites.training.noting import notes_agree
from suites.training.precision_values import BesideCase, table_cases

TWO = Stack(3, ("linear", "linear"))
RICH = HowCase(2, TWO, (0, 1), "float64", exact=True, reshard_after_forward=True, how="blocks.0.weight")
#: Two weights of 128 elements each, and biases of 24 together.
WIDE = TrainingCase(2, Stack(8, ("mlp",)), (0,), "float64", exact=True, reshard_after_forward=True)


@requirement("parameters/frozen", Feature.FULLY_SHARD, ranks=2)
@example(case=RICH)
@given(case=how_cases(*SOME, plain=True))
def test_frozen_parameters_train_as_unsharded(trial: Trial, case: HowCase) -> None:
    """Parameters frozen before or after sharding, beside trainable ones, have no gradient; all others the right one."""
    for route in FROZEN:
        follows(trial, case, route)


@requirement("parameters/frozen-by-turns", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(RICH, how="blocks.0.weight blocks.1", steps=3))
@given(case=how_cases(*TURNS, plain=True, steps=3))
def test_freezing_can_change_between_steps(trial: Trial, case: HowCase) -> None:
    """What is frozen or unfrozen between steps is so from the next forward, whatever forward without gradients ran."""
    follows(trial, case, BY_TURNS)


@requirement("parameters/called-again", Feature.FULLY_SHARD, ranks=2)
@example(case=RICH)
@given(case=how_cases(*SOME, plain=True))
def test_modules_may_run_several_times(trial: Trial, case: HowCase) -> None:
    """Modules with frozen parameters that run twice in a forward, with gradients once or twice, train as unsharded."""
    for route in AGAIN:
        follows(trial, case, route)


@requirement("parameters/all-frozen", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(steps=1))
def test_a_net_that_is_frozen_entirely_runs(trial: Trial, case: TrainingCase) -> None:
    """A net of frozen parameters alone runs forward as the unsharded one does."""
    follows(trial, case, ALL_FROZEN)


@requirement("parameters/frozen-not-reduced", Feature.FULLY_SHARD, ranks=2)
def test_frozen_parameters_are_not_reduced(trial: Trial) -> None:
    """A step with frozen weights hands fewer elements to reductions than one of these weights has."""
    for number, elements in enumerate(trial.run(elements_reduced, WIDE)):
        trial.holds(elements < 128, f"rank {number}: expected fewer than 128 elements to be reduced, got {elements}")


@requirement("parameters/tied", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(plain=True, plan=()))
def test_tied_weights_in_one_group_stay_tied(trial: Trial, case: TrainingCase) -> None:
    """A weight that two modules of a group share has the sum of both gradients, and both modules see its updates."""
    follows(trial, case, TIED)


@requirement("parameters/tied-in-a-list", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(plain=True, plan=()))
def test_tied_weights_in_a_list_of_modules_stay_tied(trial: Trial, case: TrainingCase) -> None:
    """A weight that modules of one list share trains as unsharded: every row on every rank, uneven ones too."""
    follows(trial, case, TIED_IN_A_LIST)


@requirement("parameters/tied-across-groups", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(plain=True, plan=(0, 1), steps=1))
def test_weights_tied_across_groups_are_refused(trial: Trial, case: TrainingCase) -> None:
    """A weight that two modules share which are sharded separately raises ValueError by the first forward."""
    trial.refuses(partial(walk, route=TIED), case, "ValueError", "another")


@requirement("parameters/ignored", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS, ranks=2)
@given(case=ignored_cases())
def test_ignored_parameters_are_left_alone(trial: Trial, case: IgnoredCase) -> None:
    """Ignored parameters stay what they were, in full, with each rank's own gradient; all others train as unsharded."""
    judging.follows(trial, Ignoring.play, expected(case))


@requirement("parameters/ignored-stay", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS)
@given(case=ignored_cases())
def test_ignored_parameters_are_the_same_objects(trial: Trial, case: IgnoredCase) -> None:
    """Sharding replaces every parameter but those ignored, wherever these are used."""
    want = {name: name in case.ignored for name in case.parameter_names}
    finds(trial, Ignoring.seen, case, {"found": {}, "same": want}, (), "same")


@requirement("parameters/other-dtypes", Feature.FULLY_SHARD, ranks=2)
@given(case=table_cases(low=False))
def test_frozen_parameters_of_other_dtypes_share_a_group(trial: Trial, case: BesideCase) -> None:
    """A frozen parameter of another dtype, integers included, is sharded and gathered in it, beside trainable ones."""
    notes_agree(trial, case)
