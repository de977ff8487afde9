"""Clipping and scaling of gradients that lie over several axes: what is drawn, and what runs on ranks.

Gradients [3] and [4] on two ranks have the norm 5 on both; clipped to 1 they are [0.6] and [0.8].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from harness.worlds.rank import Rank
from suites.kit.parallel import parallel_cases
from suites.kit.programs import whole
from suites.oracle.expected import expected
from suites.oracle.layout import own
from suites.parallelism.tensor_parallel import TensorParallel, TensorParallelCase

#: Below the norm of nearly all gradients drawn; those that are below it are left as they are.
MOST_NORM = 0.5
#: A power of two, so that scaling by it is exact.
SCALE = 1024.0


@dataclass(frozen=True)
class NormCase(TensorParallelCase):
    """One backward. ``norm`` is the kind of norm; the gradients of rank ``spoilt`` get an infinity, if there is one."""

    norm: str = "2"
    foreach: bool | None = None
    spoilt: int | None = None


@st.composite
def norm_cases(draw: st.DrawFn, /, spoilt: bool = False) -> NormCase:
    """Kinds of norms, and which rank has an infinity.

    Every rank has some of each parameter, since the largest of no numbers is none of this chapter's business.
    """
    cases = parallel_cases(kind=NormCase, exact=True, dtype="float32" if spoilt else "float64", steps=1)
    case: NormCase = draw(cases.filter(leaves_no_rank_without))
    return replace(
        case,
        norm=draw(st.sampled_from(["2", "1", "3", "inf"])),
        foreach=draw(st.sampled_from([None, True, False])),
        spoilt=draw(st.sampled_from([None, *range(case.world_size)])) if spoilt else None,
    )


def leaves_no_rank_without(case: NormCase) -> bool:
    """Whether every rank has something of every parameter."""
    return all(part.numel() for rank in range(case.world_size) for part in case.parts(rank).values())


def clip(rank: Rank, case: NormCase) -> dict[str, Any]:
    """The total norm that clipping returns, and the gradients after it."""
    stack = TensorParallel(rank, case)
    stack.do_all(("forward", "backward"))
    total = nn.utils.clip_grad_norm_(stack.held.values(), MOST_NORM, float(case.norm), foreach=case.foreach)
    return {"total": whole(total), "gradients": stack.see_gradients()}


def clipped(case: NormCase, number: int) -> dict[str, Any]:
    """What rank ``number`` must see of the unsharded model, clipped."""
    gradients = expected(case).whole[0]["gradients"]
    total = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients.values()]), float(case.norm))
    factor = (MOST_NORM / (total + 1e-6)).clamp(max=1.0)
    parts = expected(case).of_parameters({name: g * factor for name, g in gradients.items()}, number)
    return {"total": total, "gradients": parts}


def scaled_step(rank: Rank, case: NormCase) -> dict[str, Any]:
    """Scale the loss, let a gradient scaler unscale and step; what it left, and the scale afterwards."""
    stack = TensorParallel(rank, case)
    (stack.losses()[0] * SCALE).backward()
    optimizer = torch.optim.SGD(stack.held.values(), lr=case.learning_rate)
    scaler = torch.amp.GradScaler(rank.device.type, init_scale=SCALE, growth_interval=1000)
    scaler.scale(torch.zeros((), device=rank.device))
    if rank.number == case.spoilt:
        own(next(iter(stack.held.values())).grad).view(-1)[0] = float("inf")
    scaler.unscale_(optimizer)
    after = stack.see_gradients()
    scaler.step(optimizer)
    scaler.update()
    return {"gradients": after, "parameters": stack.see_parameters(), "scale": scaler.get_scale()}


def stepped(case: NormCase, number: int) -> dict[str, Any]:
    """What rank ``number`` must see: a step where all is finite, else none and half the scale."""
    [step] = expected(case).trace(number)
    ends = {"parameters": step["parameters"], "scale": SCALE}
    if case.spoilt is not None:
        ends = {"parameters": case.parts(number), "scale": SCALE / 2}
    return {"gradients": step["gradients"], **ends}
