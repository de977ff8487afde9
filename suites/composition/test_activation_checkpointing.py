"""Activation checkpointing: what ``checkpoint`` recomputes, and that it changes nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example
from hypothesis import strategies as st
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.refusals import TYPE_ERRORS
from harness.vendor import Feature
from suites.composition import recompute, recompute_options
from suites.composition.recompute import (
    LAYERS,
    RecomputeCase,
    expected_kept,
    expected_runs,
    recompute_cases,
    sharded_cases,
)
from suites.kit.strategies import each, given
from suites.oracle.judging import finds, right_or_refused

CHECKPOINT = Feature.CHECKPOINT
ONE = RecomputeCase()
NESTED = RecomputeCase(layers=3, recomputed=("", "layers.1", "layers.1.linear"), twice=True)


@requirement("checkpoint/same-results", CHECKPOINT)
@example(case=NESTED)
@given(case=st.booleans().flatmap(lambda preserved: recompute_cases(preserve_rng_state=preserved)))
def test_recomputation_changes_no_result(trial: Trial, case: RecomputeCase) -> None:
    """Modules that hand on several tensors, keywords or the same module twice give the same output and gradients."""
    are_alike(trial, case)


@requirement("checkpoint/random-numbers", CHECKPOINT)
@given(case=recompute_cases(dropout=0.5))
def test_recomputation_draws_the_random_numbers_of_the_forward(trial: Trial, case: RecomputeCase) -> None:
    """Dropout drops the same when it is recomputed, and random numbers drawn later are those drawn without."""
    are_alike(trial, case)


@requirement("checkpoint/sharded-random-numbers", CHECKPOINT, Feature.FULLY_SHARD, ranks=2)
@each(RecomputeCase(world_size=2, dim=4, dropout=0.5, sharded=True), checkpoint_first=(True, False))
@given(case=sharded_cases())
def test_sharded_modules_draw_the_random_numbers_of_the_forward(trial: Trial, case: RecomputeCase) -> None:
    """In sharded modules, too, recomputation changes no result of dropout, whichever function came first."""
    are_alike(trial, case)


@requirement("checkpoint/recomputes", CHECKPOINT)
@example(case=RecomputeCase(evaluated=True))
@example(case=RecomputeCase(frozen=("layers.1",)))
@given(case=recompute_cases(LAYERS))
def test_forward_keeps_no_activations_and_backward_computes_them_again(trial: Trial, case: RecomputeCase) -> None:
    """What is recomputed, frozen or not, keeps no activations until backward, and runs once more, in eval mode too."""
    [(_, got)] = trial.run(recompute.both, case)
    trial.agree("activations kept", got["activations kept"], expected_kept(case))
    trial.agree("runs", got["runs"], expected_runs(case, recomputing=True))


@requirement("checkpoint/no-more-collectives", CHECKPOINT, Feature.FULLY_SHARD, ranks=2)
@given(case=sharded_cases())
def test_recomputation_makes_no_more_collectives(trial: Trial, case: RecomputeCase) -> None:
    """A sharded module that is recomputed is gathered and reduced as often as one that is not, in either order."""
    for number, (plain, recomputed) in enumerate(trial.run(recompute.both, case)):
        trial.holds(bool(plain["collectives"]), f"rank {number}: expected collectives, but none was heard")
        trial.agree(f"rank {number}", recomputed["collectives"], plain["collectives"])


@requirement("checkpoint/without-gradients", CHECKPOINT)
@given(case=recompute_cases(LAYERS))
def test_nothing_is_recomputed_without_gradients(trial: Trial, case: RecomputeCase) -> None:
    """Under no_grad the output is the same, and everything runs once."""
    [(plain, recomputed)] = trial.run(recompute.both, case, False)
    trial.agree("results", recomputed["results"], plain["results"])
    trial.agree("runs", recomputed["runs"], expected_runs(case, recomputing=False))


@requirement("checkpoint/leaves-the-module", CHECKPOINT)
@given(case=recompute_cases())
def test_names_classes_and_structure_stay(trial: Trial, case: RecomputeCase) -> None:
    """Returned is the module itself, whose class, names, submodules and state dict are as they were."""
    [(plain, recomputed)] = trial.run(recompute.both, case)
    trial.agree("the net", recomputed["looks"], plain["looks"])
    trial.agree("is what was given", recomputed["returned the module"], [True] * len(case.recomputed))


@requirement("checkpoint/copies", CHECKPOINT)
@given(case=recompute_cases(LAYERS, copied=True))
def test_copies_are_recomputed_with_their_own_weights(trial: Trial, case: RecomputeCase) -> None:
    """A copy.deepcopy of a net that recomputes trains with weights of its own, and recomputes what the net does."""
    [(plain, recomputed)] = trial.run(recompute.both, case)
    trial.agree("results", recomputed["results"], plain["results"])
    trial.agree("runs", recomputed["runs"], expected_runs(case, recomputing=True))


@requirement("checkpoint/after-failures", CHECKPOINT)
@given(case=recompute_cases(recomputed=("layers.0",), layers=1, twice=False))
def test_a_module_that_raised_can_be_used_again(trial: Trial, case: RecomputeCase) -> None:
    """After an exception in forward or in recomputation, a module is recomputed as before, with the same results."""
    [(want, _)] = trial.run(recompute.both, case)
    for fails_in in (1, 2):
        [got] = trial.run(recompute.after_a_failure, case, fails_in)
        trial.agree("raised", got["raised"], f"run {fails_in} fails")
        trial.agree(f"the pass after run {fails_in} failed", got["results"], want["results"])
        trial.agree(f"runs after run {fails_in} failed", got["runs"], expected_runs(case, recomputing=True))


@requirement("checkpoint/contexts", CHECKPOINT)
@given(case=recompute_cases(recomputed=(), twice=False))
def test_contexts_are_entered_in_forward_and_recomputation(trial: Trial, case: RecomputeCase) -> None:
    """Of the two contexts that context_fn makes, forward runs within the first and recomputation within the second."""
    [log] = trial.run(recompute_options.contexts_entered, case)
    trial.agree("what happened", log, recompute_options.CONTEXTS)


@requirement("checkpoint/options", CHECKPOINT)
def test_options_that_are_false_count(trial: Trial) -> None:
    """With early_stop=False what is recomputed runs to its end; with preserve_rng_state=False it draws numbers anew."""
    for options, ends, runs in (({}, 1, 1), ({"early_stop": False}, 2, 1), ({"preserve_rng_state": False}, 1, 2)):
        want = {"ends": ends, "drawn next": recompute_options.drawn(ONE.seed, runs)}
        finds(trial, recompute_options.ended, ONE, want, options)


@requirement("checkpoint/keywords", CHECKPOINT)
def test_a_modules_keywords_are_its_own(trial: Trial) -> None:
    """A module that is recomputed is given its own keywords, or an error names those that have an option's name."""

    def judge(found: list[Tensor]) -> None:
        trial.agree("the gradient", found[0], torch.tensor([6.0, 6.0]))

    program = recompute_options.called_by_its_keywords
    right_or_refused(trial, program, ONE, judge, "debug", "early_stop", error=TYPE_ERRORS)


@requirement("checkpoint/determinism", CHECKPOINT)
def test_other_tensors_in_recomputation_are_refused(trial: Trial) -> None:
    """Recomputing tensors of other shapes raises a CheckpointError, unless determinism_check is "none"."""
    trial.refuses(
        recompute_options.recomputes_otherwise,
        ONE,
        "different",
        "differ",
        "metadata",
        "shape",
        error=("CheckpointError",),
    )
    unchecked = RecomputeCase(determinism_check="none")
    [gradient] = trial.run(recompute_options.recomputes_otherwise, unchecked)
    trial.agree("the gradient", gradient, torch.tensor([2.0, 3.0]))


@requirement("checkpoint/refuses-reentry", CHECKPOINT)
def test_reentrant_recomputation_is_refused(trial: Trial) -> None:
    """With use_reentrant=True an error is raised that names it."""
    trial.refuses(recompute.both, RecomputeCase(keyword="use_reentrant"), "use_reentrant")


@requirement("checkpoint/refuses-keywords", CHECKPOINT)
@pytest.mark.parametrize("keyword", ["foo", "recompute", "preserve_rng", "policy"])
def test_unknown_keywords_are_refused(trial: Trial, keyword: str) -> None:
    """A keyword that is not known raises an error that names it."""
    trial.refuses(recompute.both, RecomputeCase(keyword=keyword), keyword, error=TYPE_ERRORS)


@requirement("checkpoint/once", CHECKPOINT, level="should")
@given(case=recompute_cases(LAYERS))
def test_one_module_is_not_checkpointed_twice(trial: Trial, case: RecomputeCase) -> None:
    """A second checkpoint of one module raises an error that says it can be applied once."""
    case = replace(case, recomputed=case.recomputed * 2)
    trial.refuses(recompute.both, case, "once", "twice", "already applied", "already been applied")


def are_alike(trial: Trial, case: RecomputeCase) -> None:
    """Train without and with recomputation, and compare the results bit for bit."""
    for number, (plain, recomputed) in enumerate(trial.run(recompute.both, case)):
        trial.agree(f"rank {number}", recomputed["results"], plain["results"])
