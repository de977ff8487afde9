"""Gradients to clip and losses to scale, on one axis or on replicas of shards: what is drawn.

Two ranks hold the gradients [3, 0] and [4] of three rows. Their 2-norm is 5 on both; clipped to 1 they are [0.6, 0] and
[0.8]. With infinity in the first rank's part neither rank takes a step, and both halve their scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from suites.kit.cases import TrainingCase, as_case
from suites.kit.hsdp import hsdp_cases
from suites.kit.strategies import training_cases
from suites.oracle.layout import shard
from suites.parallelism.norms import NormCase, leaves_no_rank_without

NORMS = ("1.0", "2.0", "3.0", "inf")
#: A limit below every norm of these nets, and one above.
LIMITS = (0.25, 2.0**40)


@st.composite
def clip_cases(draw: st.DrawFn, /, replicas: bool = False) -> NormCase:
    """Exact gradients on one axis, or on replicas of shards; the infinity norm where every rank has rows of each."""
    case = on_its_axes(draw((hsdp_cases if replicas else training_cases)(exact=True, steps=1, dtype="float64")))
    norms = [norm for norm in NORMS if norm != "inf" or leaves_no_rank_without(case)]
    choices = {"norm": norms, "limit": LIMITS, "foreach": (None, True, False)}
    fields: dict[str, Any] = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    return replace(case, **fields)


@st.composite
def scaler_cases(draw: st.DrawFn, /, spoilt: bool = False) -> NormCase:
    """Exact gradients; if ``spoilt``, on any rank that holds rows of the first parameter."""
    case = draw(training_cases(exact=True, steps=1))
    first = next(case.build().parameters())
    holders = [number for number in range(case.world_size) if shard(first, case.shards, number).numel()]
    scale = 2.0 ** draw(st.integers(0, 6))
    return on_its_axes(case, scale=scale, spoilt=draw(st.sampled_from(holders)) if spoilt else -1)


def on_its_axes(case: TrainingCase, **fields: Any) -> NormCase:
    """The case, on its replicas of shards, or on one axis."""
    replicas = {"shard": ("shard",), "replicate": ("replicate",)} if case.mesh else {}
    return as_case(NormCase, case, axes=case.axes or ("dp",), **replicas, **fields)
