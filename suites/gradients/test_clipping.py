"""Gradient clipping and gradient scaling: one norm, and one decision, of all ranks."""

from __future__ import annotations

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.gradients.clipping import NORMS, clip_cases, scaler_cases
from suites.kit.cases import Stack
from suites.kit.strategies import each, given
from suites.parallelism.norms import NormCase, clips, refuse_infinity, scales

ONE_AXIS = (Feature.FULLY_SHARD, Feature.DTENSORS)
SMALL = NormCase(2, Stack(2, ("linear", "mlp"), 1), (0,), "float64", exact=True, steps=1, axes=("dp",))
REPLICATED = (*ONE_AXIS, Feature.HSDP)


@requirement("clipping/one-axis", *ONE_AXIS, ranks=2)
@each(SMALL, norm=NORMS)
@given(case=clip_cases())
def test_gradients_are_clipped_by_the_norm_of_all(trial: Trial, case: NormCase) -> None:
    """On every rank the total norm (1, 2, 3 or infinity) is the unsharded model's, and gradients are clipped by it."""
    clips(trial, case)


@requirement("clipping/hsdp", *REPLICATED, ranks=2)
@given(case=clip_cases(replicas=True))
def test_replicas_count_once_in_the_norm(trial: Trial, case: NormCase) -> None:
    """On replicas of shards the total norm is the unsharded model's, whatever the number of replicas."""
    clips(trial, case)


@requirement("clipping/refuses-infinity", *ONE_AXIS, ranks=2)
@given(case=scaler_cases(spoilt=True))
def test_infinity_on_one_rank_is_refused_on_all(trial: Trial, case: NormCase) -> None:
    """With error_if_nonfinite every rank raises an error when one rank's gradients are not finite."""
    trial.refuses(refuse_infinity, case, "finite", "nonfinite", "infinite", "infinity", "inf", "NaN")


@requirement("clipping/scaler", *ONE_AXIS, ranks=2)
@given(case=scaler_cases())
def test_a_scaled_loss_gives_the_same_step(trial: Trial, case: NormCase) -> None:
    """Under a GradScaler gradients and step are those of the unsharded model, and the scale stays."""
    scales(trial, case)


@requirement("clipping/scaler-infinity", *ONE_AXIS, ranks=2)
@given(case=scaler_cases(spoilt=True))
def test_infinity_on_one_rank_stops_the_step_on_all(trial: Trial, case: NormCase) -> None:
    """When one rank's gradients are not finite, a GradScaler takes no step and halves its scale on every rank."""
    scales(trial, case)
