"""Training: losses, gradients and parameters are those of the unsharded model."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack, TrainingCase
from suites.kit.programs import train
from suites.kit.strategies import given, training_cases
from suites.oracle.judging import trains

#: Tried before any drawn case, since it has what finds most defects: several passes through nested modules that are
#: gathered again for backward, and rows that ranks do not divide.
NESTED = Stack(dim=5, blocks=("mlp", "linear"), multiplier=1)
RICH = TrainingCase(world_size=2, net=NESTED, sharded=(0, 1), dtype="float64", exact=True, reshard_after_forward=True)


@requirement("parity/exact", Feature.FULLY_SHARD, ranks=2)
@example(case=RICH)
@example(case=replace(RICH, net=Stack(dim=3, blocks=("linear", "linear"))))  # one size twice
@example(case=replace(RICH, net=Stack(dim=3, blocks=("linear",)), sharded=(), dtype="float32", steps=1))
@example(case=TrainingCase(2, Stack(1, ("linear",)), exact=True, steps=1))
@given(case=training_cases(exact=True))
def test_training_on_integers_equals_the_unsharded_model_bit_for_bit(trial: Trial, case: TrainingCase) -> None:
    """On data whose sums are exact, every loss, gradient and parameter equals the unsharded model's bit for bit."""
    trains(trial, train, case)


@requirement("parity/general", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(RICH, dtype="float32", exact=False, steps=3))
@given(case=training_cases())
def test_training_follows_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """Sharding changes no loss, gradient or parameter beyond rounding, whatever the shapes, plan, steps and ranks."""
    trains(trial, train, case)


@requirement("parity/to-group", Feature.FULLY_SHARD, Feature.RESHARD_TO_GROUP, ranks=2)
@given(case=training_cases(to_group=True))
def test_training_that_reshards_to_groups_follows_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """Keeping shards over smaller groups between forward and backward changes no loss, gradient or parameter."""
    trains(trial, train, case)
