"""Gradient clipping and gradient scaling: one norm, and one decision, of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.gradients.clipping import ClipCase, ScalerCase, clip, clip_cases, refuse_infinity, scaled_step, scaler_cases
from suites.kit import tolerance
from suites.oracle.expected import expected
from suites.oracle.judging import agrees

ONE_AXIS = (Feature.FULLY_SHARD,)
REPLICATED = (*ONE_AXIS, Feature.HSDP)


def clips(trial: Trial, case: ClipCase) -> None:
    """Compare norms and clipped gradients with those of the unsharded model."""
    want, found = expected(case), trial.run(clip, case)
    agrees(trial, [got["before"] for got in found], want)
    grads: dict[str, Any] = want.wide[-1]["gradients"]
    total: Tensor = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in grads.values()]), float(case.norm))
    factor = (case.limit / (total + 1e-6)).clamp(max=1.0)
    for number, got in enumerate(found):
        trial.agree(f"rank {number}, norms", got["norms"], [total, total], tolerance.norms)
        clipped = want.of_parameters({name: g * factor for name, g in grads.items()}, number)
        trial.agree(f"rank {number}, after", got["after"], clipped, tolerance.norms)


@requirement("clipping/one-axis", *ONE_AXIS, ranks=2)
@given(case=clip_cases())
def test_gradients_are_clipped_by_the_norm_of_all(trial: Trial, case: ClipCase) -> None:
    """On every rank the total norm (1, 2, 3 or infinity) is the unsharded model's, and gradients are clipped by it."""
    clips(trial, case)


@requirement("clipping/hsdp", *REPLICATED, ranks=2)
@given(case=clip_cases(replicas=True))
def test_replicas_count_once_in_the_norm(trial: Trial, case: ClipCase) -> None:
    """On replicas of shards the total norm is the unsharded model's, whatever the number of replicas."""
    clips(trial, case)


@requirement("clipping/refuses-infinity", *ONE_AXIS, ranks=2)
@given(case=scaler_cases(spoilt=True))
def test_infinity_on_one_rank_is_refused_on_all(trial: Trial, case: ScalerCase) -> None:
    """With error_if_nonfinite every rank raises RuntimeError when one rank's gradients are not finite."""
    trial.refuses(refuse_infinity, case, "RuntimeError", "non-finite")


@requirement("clipping/scaler", *ONE_AXIS, ranks=2)
@given(case=scaler_cases())
def test_a_scaled_loss_gives_the_same_step(trial: Trial, case: ScalerCase) -> None:
    """Under a GradScaler gradients and step are those of the unsharded model, and the scale stays."""
    want = expected(case)
    for number, got in enumerate(trial.run(scaled_step, case)):
        [right] = want.trace(number)
        due = {"gradients": right["gradients"], "parameters": right["parameters"], "scale": case.scale}
        trial.agree(f"rank {number}", got, due)


@requirement("clipping/scaler-infinity", *ONE_AXIS, ranks=2)
@given(case=scaler_cases(spoilt=True))
def test_infinity_on_one_rank_stops_the_step_on_all(trial: Trial, case: ScalerCase) -> None:
    """When one rank's gradients are not finite, a GradScaler takes no step and halves its scale on every rank."""
    named: dict[str, Any] = {name: p.detach() for name, p in case.build().named_parameters()}
    want = expected(case)
    for number, got in enumerate(trial.run(scaled_step, case)):
        right = {"gradients": None, "parameters": want.of_parameters(named, number), "scale": case.scale / 2}
        trial.agree(f"rank {number}", {**got, "gradients": None}, right)
