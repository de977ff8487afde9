"""Clipping and scaling of gradients that lie over several axes: what is drawn, and what runs on ranks.

Gradients [3] and [4] on two ranks have the norm 5 on both; clipped to 1 they are [0.6] and [0.8].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.kit.programs import gradients, parameters
from suites.oracle.expected import expected
from suites.parallelism.three_axes import ThreeAxisCase, shard_after_tp, three_axis_cases

#: Below the norm of nearly all gradients drawn; those that are below it are left as they are.
MOST_NORM = 0.5
#: A power of two, so that scaling by it is exact.
SCALE = 1024.0


@dataclass(frozen=True)
class NormCase(ThreeAxisCase):
    """One backward. ``norm`` is the kind of norm; the gradients of rank ``spoilt`` get an infinity, if there is one."""

    norm: str = "2"
    foreach: bool | None = None
    spoilt: int | None = None


@st.composite
def norm_cases(draw: st.DrawFn, /, spoilt: bool = False) -> NormCase:
    """Kinds of norms, and which rank has an infinity.

    Every rank has some of each parameter, since the largest of no numbers is none of this chapter's business.
    """
    dtype = "float32" if spoilt else "float64"
    case = draw(three_axis_cases(exact=True, dtype=dtype).filter(lambda c: fewest_rows(c) >= c.shards))
    own = {name: getattr(case, name) for name in ThreeAxisCase.__dataclass_fields__}
    return NormCase(
        **{**own, "steps": 1},
        norm=draw(st.sampled_from(["2", "1", "3", "inf"])),
        foreach=draw(st.sampled_from([None, True, False])),
        spoilt=draw(st.sampled_from([None, *range(case.world_size)])) if spoilt else None,
    )


def fewest_rows(case: ThreeAxisCase) -> int:
    """Of any parameter, on one tp rank."""
    return min(case.net.dim, case.net.dim * case.net.multiplier // case.tp)


def backward(rank: Rank, case: NormCase, scale: float = 1.0) -> nn.Sequential:
    """One forward and backward of a scaled loss."""
    net, number = shard_after_tp(rank, case), case.data_rank(rank.number)
    (case.loss(net(case.inputs(0, number).to(rank.device)), 0, number) * scale).backward()
    return net


def clip(rank: Rank, case: NormCase) -> dict[str, Any]:
    """The total norm that clipping returns, and the gradients after it."""
    net = backward(rank, case)
    total = nn.utils.clip_grad_norm_(net.parameters(), MOST_NORM, float(case.norm), foreach=case.foreach)
    whole = total.full_tensor() if isinstance(total, DTensor) else total
    return {"total": whole, "gradients": gradients(net)}


def clipped(case: NormCase, number: int) -> dict[str, Any]:
    """What rank ``number`` must see of the unsharded model, clipped."""
    [step] = expected(case).whole
    total = torch.linalg.vector_norm(torch.cat([g.flatten() for g in step["gradients"].values()]), float(case.norm))
    factor = (MOST_NORM / (total + 1e-6)).clamp(max=1.0)
    return {
        "total": total,
        "gradients": {name: case.part(number, name, g * factor) for name, g in step["gradients"].items()},
    }


def scaled_step(rank: Rank, case: NormCase) -> dict[str, Any]:
    """Scale the loss, let a gradient scaler unscale and step; what it left, and the scale afterwards."""
    net = backward(rank, case, scale=SCALE)
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate)
    scaler = torch.amp.GradScaler(rank.device.type, init_scale=SCALE, growth_interval=1000)
    scaler.scale(torch.zeros((), device=rank.device))
    if rank.number == case.spoilt:
        spoil(net)
    scaler.unscale_(optimizer)
    after = gradients(net)
    scaler.step(optimizer)
    scaler.update()
    return {"gradients": after, "parameters": parameters(net), "scale": scaler.get_scale()}


def spoil(net: nn.Module) -> None:
    """Put an infinity into the first local gradient."""
    first = next(iter(net.parameters())).grad
    assert isinstance(first, DTensor)
    with torch.no_grad():
        first.to_local().view(-1)[0] = float("inf")


def stepped(case: NormCase, number: int) -> dict[str, Any]:
    """What rank ``number`` must see: a step where all is finite, else none and half the scale."""
    [step] = expected(replace(case, steps=1)).whole
    before = {name: p.detach() for name, p in case.build().named_parameters()}
    after = step["parameters"] if case.spoilt is None else before
    return {
        "gradients": own(case, number, step["gradients"]),
        "parameters": own(case, number, after),
        "scale": SCALE if case.spoilt is None else SCALE / 2,
    }


def own(case: NormCase, number: int, full: dict[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of each."""
    return {name: case.part(number, name, tensor) for name, tensor in full.items()}
