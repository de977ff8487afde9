"""The user's own model: does it train, save and load under ``fully_shard`` as it does without?

It is judged where ``--model module:function`` names its factory, by this file, which no run of the suites collects: the
fixed list of requirements judges implementations, and a model is none. A user's own repository has a test file with::

    from suites.model.own_model import *
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from harness.pytest_plugin.options import subject_of
from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.model import programs, sizes
from suites.model.cases import ModelCase
from suites.model.factory import examine
from suites.oracle.expected import Expected, expected
from suites.oracle.judging import Test, failure_of, finds, follows, tried_by
from suites.oracle.situation import STEP
from suites.saving.chains import NeverStopped
from suites.saving.checkpoint_strategies import directory

SHARDED = Feature.FULLY_SHARD
#: What is done to a state in each form: it is saved, lost by a step, and given back to net and optimizer.
FORMS = ("sharded", "full", "rank zero")
#: Two steps, and one more elsewhere.
RESUMED = (*STEP * 2, "move", *STEP[:-1])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Look at the model before anything runs. Raises CollectError that says in one sentence what is wrong with it."""
    has_plugin = metafunc.config.pluginmanager.has_plugin("harness.pytest_plugin")
    if has_plugin and (model := subject_of(metafunc.config).model):
        try:
            examine(model)
        except ValueError as error:
            raise pytest.Collector.CollectError(str(error)) from error


def each_of(**fields: Iterable[Any]) -> Callable[[Test], Test]:
    """Have a test of one ``case`` tried on each, in this order, that the world has ranks for.

    ``fields`` are its own besides ``model``, one value for each case.
    """
    given = [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]

    def judge(trial: Trial, test: Test) -> None:
        __tracebackhide__ = True
        for case in [ModelCase(trial.subject.model, **one) for one in given]:
            fits = max(case.world_size, case.saved_on) <= trial.most_ranks
            failure = failure_of(trial, test, case) if fits else None
            if failure is not None:
                raise failure

    return tried_by(judge)


@requirement("model/training", SHARDED)
@each_of(world_size=(1, 2, 2, 3, 4), reshard_after_forward=(True, True, False, True, False))
def test_own_model_trains_as_unsharded(trial: Trial, case: ModelCase) -> None:
    """On one to four ranks losses, gradients, parameters and buffers are those of the unsharded model."""
    follows(trial, programs.ShardedModel.play, expected(case))


@requirement("model/state", SHARDED, Feature.STATE_DICT, ranks=2)
@each_of(
    world_size=(2, 3, 2),
    acts=[(*STEP, f"save {form}", *STEP, f"load {form}", f"recall {form}", *STEP) for form in FORMS],
)
def test_own_model_is_saved_and_loaded(trial: Trial, case: ModelCase) -> None:
    """The state of net and optimizer, sharded, full or on rank zero, is the unsharded one, and can be loaded again."""
    follows(trial, programs.ShardedModel.play, expected(case))


@requirement("model/resume", SHARDED, Feature.STATE_DICT, ranks=2)
@each_of(saved_on=(2, 1, 4, 3), world_size=(1, 2, 2, 4), acts=[RESUMED] * 4)
def test_own_model_resumes_on_other_ranks(trial: Trial, case: ModelCase) -> None:
    """Training resumes from a checkpoint on more or fewer ranks as if it had never stopped."""
    trial.needs(max(case.saved_on, case.world_size))
    with directory() as path:
        trial.run(programs.save, case, path, ranks=case.saved_on)
        ranks = trial.run(programs.resume, case, path)
    want = Expected(case, NeverStopped)
    for number, found in enumerate(ranks):
        due = [want.on_rank(at, number) for at in range(-len(found), 0)]
        trial.agree(f"rank {number}, {case.saved_on} to {case.world_size}", found, due, within=want.within)


@requirement("model/meta", SHARDED, Feature.META_DEVICE, Feature.STATE_DICT, ranks=2)
@each_of(world_size=(2, 3))
def test_own_model_may_begin_on_meta(trial: Trial, case: ModelCase) -> None:
    """Built and sharded on the meta device, and then given its weights, it trains as the unsharded model."""
    follows(trial, programs.FromMeta.play, expected(case))


@requirement("model/memory", SHARDED, ranks=2)
@each_of(world_size=(2, 4))
def test_own_model_is_held_in_parts(trial: Trial, case: ModelCase) -> None:
    """At rest a rank holds its part of parameters, after forward activations too, and after backward gradients."""
    for number, got in enumerate(trial.run(programs.held, case)):
        for when, most in sizes.may_hold(case, got["activations"]).items():
            trial.holds(got[when] <= most, f"rank {number}, {when}: expected at most {most} bytes, got {got[when]}")


@requirement("model/communication", SHARDED, ranks=2)
@each_of(world_size=(2, 3, 4))
def test_own_model_sends_no_more_than_it_must(trial: Trial, case: ModelCase) -> None:
    """In a step all parameters are gathered once in forward and once in backward, and gradients reduced once."""
    finds(trial, programs.sent, case, sizes.must_send(case))
