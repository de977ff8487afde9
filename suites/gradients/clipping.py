"""Clipping gradients by their norm, and scaling losses: what is drawn, and what runs on ranks.

Two ranks hold the gradients [3, 0] and [4] of three rows. Their 2-norm is 5 on both; clipped to 1 they are [0.6, 0] and
[0.8]. With infinity in the first rank's part neither rank takes a step, and both halve their scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase, as_case
from suites.kit.hsdp import hsdp_cases
from suites.kit.programs import ShardedStack
from suites.kit.strategies import training_cases
from suites.oracle.layout import shard
from suites.oracle.situation import PASS
from suites.parallelism.norms import spoil

NORMS = ("1.0", "2.0", "3.0", "inf")
#: A limit below every norm of these nets, and one above.
LIMITS = (0.25, 2.0**40)


@dataclass(frozen=True)
class ClipCase(TrainingCase):
    """One backward, after which gradients are clipped so that their norm of type ``norm`` is at most ``limit``."""

    norm: str = "2.0"
    limit: float = 0.25
    foreach: bool | None = None


@dataclass(frozen=True)
class ScalerCase(TrainingCase):
    """One backward of a scaled loss, then a step; on rank ``spoilt``, if any, infinity is put into its gradients."""

    scale: float = 8.0
    spoilt: int = -1


@st.composite
def clip_cases(draw: st.DrawFn, /, replicas: bool = False) -> Any:
    """Exact gradients on one axis, or on replicas of shards; the infinity norm where every rank has rows of each."""
    case = draw((hsdp_cases if replicas else training_cases)(exact=True, steps=1, dtype="float64"))
    parts = [shard(p, case.shards, place) for p in case.build().parameters() for place in range(case.shards)]
    norms = [norm for norm in NORMS if norm != "inf" or all(part.numel() for part in parts)]
    fields = {"norm": norms, "limit": LIMITS, "foreach": (None, True, False)}
    return as_case(ClipCase, case, **{name: draw(st.sampled_from(values)) for name, values in fields.items()})


@st.composite
def scaler_cases(draw: st.DrawFn, /, spoilt: bool = False) -> Any:
    """Exact gradients; if ``spoilt``, on any rank that holds rows of the first parameter."""
    case = draw(training_cases(exact=True, steps=1))
    first = next(case.build().parameters())
    holders = [number for number in range(case.world_size) if shard(first, case.shards, number).numel()]
    scale = 2.0 ** draw(st.integers(0, 6))
    return as_case(ScalerCase, case, scale=scale, spoilt=draw(st.sampled_from(holders)) if spoilt else -1)


def refuse_infinity(rank: Rank, case: ScalerCase) -> None:
    """Clip gradients that are not finite, on one rank."""
    stack = ShardedStack(rank, case)
    stack.do_all(PASS)
    spoil(stack)
    torch.nn.utils.clip_grad_norm_(stack.held.values(), 1.0, error_if_nonfinite=True)
