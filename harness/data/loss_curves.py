"""Curves of losses, of what a test compares: a rank's own beside the unsharded model's, by step.

Two steps of training whose traces say ``[{"loss": 4.0, …}, {"loss": 3.5, …}]``, expected ``[{"loss": 4.0, …}, {"loss":
3.0, …}]`` of rank 1, make::

    {"name": "loss, rank 1", "baseline": [4.0, 3.0], "ranks": {"rank 1": [4.0, 3.5]}}
"""

from __future__ import annotations

import math
from typing import Any

import torch

#: One curve as a record keeps it; None stands for what is not finite, which JSON has no word for.
Curve = dict[str, Any]

#: How many curves are kept of one case, and how many steps of each.
MOST_CURVES, MOST_STEPS = 4, 64


def curves_of(where: str, got: Any, want: Any) -> list[Curve]:
    """The curve of two traces, lists of steps that have a ``loss``; none of other trees, nor of a single step."""
    subject, baseline = _losses(got), _losses(want)
    if len(subject) < 2 or len(baseline) < 2:
        return []
    return [{"name": f"loss, {where}", "baseline": baseline, "ranks": {where: subject}}]


def _losses(tree: Any) -> list[float | None]:
    """The loss of each step; of several micro-batches the mean."""
    if not isinstance(tree, list) or not all(isinstance(step, dict) and "loss" in step for step in tree):
        return []
    losses = [torch.as_tensor(step["loss"], dtype=torch.float64) for step in tree[:MOST_STEPS] if _is_number(step)]
    means = [float(loss.mean()) for loss in losses]
    return [mean if math.isfinite(mean) else None for mean in means]


def _is_number(step: dict[str, Any]) -> bool:
    loss = step["loss"]
    return isinstance(loss, (int, float)) or (isinstance(loss, torch.Tensor) and loss.numel() > 0)
