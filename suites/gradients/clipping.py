"""Clipping gradients by their norm, and scaling losses: what is drawn, what runs on ranks, and what must come of it.

Two ranks hold the gradients [3, 0] and [4] of three rows. Their 2-norm is 5 on both; clipped to 1 they are [0.6, 0] and
[0.8]. With infinity in the first rank's part neither rank takes a step, and both halve their scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.programs import apply, gradients, parameters
from suites.kit.strategies import training_cases
from suites.oracle.layout import shard

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
def clip_cases(draw: st.DrawFn, /, replicas: bool = False) -> ClipCase:
    """Exact gradients on one axis, or on replicas of shards; the infinity norm where every rank has rows of each."""
    case = draw((hsdp_cases if replicas else training_cases)(exact=True, steps=1, dtype="float64"))
    return as_clip(
        case,
        norm=draw(st.sampled_from([norm for norm in NORMS if norm != "inf" or not has_empty_parts(case)])),
        limit=draw(st.sampled_from(LIMITS)),
        foreach=draw(st.sampled_from([None, True, False])),
    )


def as_clip(case: TrainingCase, **fields: Any) -> ClipCase:
    """The case with what is clipped to."""
    return ClipCase(**{name: getattr(case, name) for name in TrainingCase.__dataclass_fields__}, **fields)


def has_empty_parts(case: TrainingCase) -> bool:
    """Whether some rank has no rows of some parameter."""
    parts = [shard(p, case.shards, place) for p in case.build().parameters() for place in range(case.shards)]
    return not all(part.numel() for part in parts)


@st.composite
def scaler_cases(draw: st.DrawFn, /, spoilt: bool = False) -> ScalerCase:
    """Exact gradients; if ``spoilt``, on any rank that holds rows of the first parameter."""
    case = draw(training_cases(exact=True, steps=1))
    first = next(case.build().parameters())
    holders = [number for number in range(case.world_size) if shard(first, case.shards, number).numel()]
    return ScalerCase(
        **{name: getattr(case, name) for name in TrainingCase.__dataclass_fields__},
        scale=2.0 ** draw(st.integers(0, 6)),
        spoilt=draw(st.sampled_from(holders)) if spoilt else -1,
    )


def sharded(rank: Rank, case: TrainingCase) -> nn.Sequential:
    """The net on the case's mesh."""
    return apply(rank, case, case.build(), reshard_after_forward=case.reshard_after_forward)


def clip(rank: Rank, case: ClipCase) -> dict[str, Any]:
    """The total norm before clipping, as both functions give it, and the gradients before and after."""
    net, norm = sharded(rank, case), float(case.norm)
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    before = gradients(net)
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    alone = torch.nn.utils.get_total_norm(grads, norm, foreach=case.foreach)
    total = torch.nn.utils.clip_grad_norm_(net.parameters(), case.limit, norm, foreach=case.foreach)
    return {"norms": [full(alone), full(total)], "before": before, "after": gradients(net)}


def refuse_infinity(rank: Rank, case: ScalerCase) -> None:
    """Clip gradients that are not finite, on one rank."""
    net = sharded(rank, case)
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    spoil(rank, case, net)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)


def scaled_step(rank: Rank, case: ScalerCase) -> dict[str, Any]:
    """The gradients unscaled, the parameters after the step, and the scale after its update."""
    net = sharded(rank, case)
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate)
    scaler = torch.amp.GradScaler(rank.device.type, init_scale=case.scale, growth_interval=1000)
    loss = case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number)
    scaler.scale(loss).backward()
    spoil(rank, case, net)
    scaler.unscale_(optimizer)
    found = gradients(net)
    scaler.step(optimizer)
    scaler.update()
    return {"gradients": found, "parameters": parameters(net), "scale": float(scaler.get_scale())}


def spoil(rank: Rank, case: ScalerCase, net: nn.Module) -> None:
    """Put infinity into this rank's first gradient, if it is the one."""
    if rank.number == case.spoilt:
        first = next(net.parameters()).grad
        assert isinstance(first, DTensor)
        first.to_local()[0] = torch.inf


def full(tensor: Tensor) -> Tensor:
    """A tensor put together by all ranks."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


# What must come of it.


def total_norm(grads: dict[str, Tensor], norm: float) -> Tensor:
    """The norm of all gradients as one vector."""
    total: Tensor = torch.linalg.vector_norm(torch.cat([grad.reshape(-1) for grad in grads.values()]), norm)
    return total


def rows(case: ClipCase, number: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What one rank holds."""
    return {name: shard(tensor, case.shards, number % case.shards) for name, tensor in tensors.items()}
