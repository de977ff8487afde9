"""Clipping and scaling of gradients: what runs on ranks, how it is judged, and cases on a mesh of several axes.

Gradients [3] and [4] on two ranks have the norm 5 on both; clipped to 1 they are [0.6] and [0.8].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

from harness.data.comparison import exact
from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import asks_for, claims
from harness.worlds.rank import Rank
from suites.kit import tolerance
from suites.kit.parallel import parallel_cases
from suites.oracle.expected import expected
from suites.oracle.judging import compare
from suites.oracle.layout import own, put_together
from suites.oracle.situation import PASS
from suites.parallelism.tensor_parallel import TensorParallel, TensorParallelCase

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class NormCase(TensorParallelCase):
    """One backward. ``norm`` is its kind; the gradients of rank ``spoilt`` get an infinity, if there is one."""

    norm: str = "2"
    #: Below the norm of nearly all gradients drawn; those that are below it are left as they are.
    limit: float = 0.5
    foreach: bool | None = None
    scale: float = 1024.0
    spoilt: int = -1

    def fitted(self) -> Self:
        """Without the largest number where it is open whether each rank has one: DTensor has none of an empty part."""
        fitted, other = super().fitted(), dict[str, Any](norm="2")
        return fitted if Feature.ROW_LAYOUT in claims() or float(self.norm) != inf else replace(fitted, **other)


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
        spoilt=draw(st.sampled_from([-1, *range(case.world_size)])) if spoilt else -1,
    )


def leaves_no_rank_without(case: NormCase) -> bool:
    """Whether every rank has something of every parameter."""
    return all(part.numel() for rank in range(case.world_size) for part in case.parts(rank).values())


def clip(rank: Rank, case: NormCase) -> dict[str, Any]:
    """The total norm before clipping, as both functions give it, and gradients before and after."""
    stack, norm = TensorParallel(rank, case), float(case.norm)
    stack.do_all(PASS)
    before, grads = stack.see_gradients(), [p.grad for p in stack.held.values() if p.grad is not None]
    alone = torch.nn.utils.get_total_norm(grads, norm, foreach=case.foreach)
    total = torch.nn.utils.clip_grad_norm_(stack.held.values(), case.limit, norm, foreach=case.foreach)
    return {"norms": [put_together(alone), put_together(total)], "before": before, "after": stack.see_gradients()}


def clips(trial: Trial, case: NormCase) -> None:
    """Compare norms and clipped gradients with those of the unsharded model."""
    want = expected(case)
    grads: dict[str, Any] = want.whole[0]["gradients"]
    total = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in grads.values()]), float(case.norm))
    factor = (case.limit / (total + 1e-6)).clamp(max=1.0)
    gots = trial.run(clip, case)
    for look, scale, within in (("before", 1.0, exact), ("after", factor, tolerance.norms)):
        scaled = {name: g * scale for name, g in grads.items()}
        dues = [want.of_parameters(scaled, number) for number in range(len(gots))]
        compare(trial, case, [got[look] for got in gots], dues, within, f", {look}")
    compare(trial, case, [got["norms"] for got in gots], [[total, total]] * len(gots), tolerance.norms, ", norms")


def scaled_step(rank: Rank, case: NormCase) -> dict[str, Any]:
    """The gradients unscaled, the parameters after the step, and the scale after its update."""
    stack = TensorParallel(rank, case)
    optimizer = torch.optim.SGD(stack.held.values(), lr=case.learning_rate)
    scaler = torch.amp.GradScaler(rank.device.type, init_scale=case.scale, growth_interval=1000)
    scaler.scale(stack.losses()[0]).backward()
    spoil(stack)
    scaler.unscale_(optimizer)
    found = stack.see_gradients()
    scaler.step(optimizer)
    scaler.update()
    return {"gradients": found, "parameters": stack.see_parameters(), "scale": float(scaler.get_scale())}


def scales(trial: Trial, case: NormCase) -> None:
    """Require a step where all is finite, else none, and half the scale; gradients but for spoilt ones are right."""
    want, is_spoilt = expected(case), case.spoilt >= 0
    gots, dues = trial.run(scaled_step, case), []
    for number, got in enumerate(gots):
        [right] = want.trace(number)
        dues.append(
            {
                "gradients": got["gradients"] if number == case.spoilt else right["gradients"],
                "parameters": want.of_parameters(case.full(), number) if is_spoilt else right["parameters"],
                "scale": case.scale / 2 if is_spoilt else case.scale,
            }
        )
    compare(trial, case, gots, dues)


def refuse_infinity(rank: Rank, case: NormCase) -> None:
    """Clip gradients that are not finite, on one rank."""
    stack = TensorParallel(rank, case)
    stack.do_all(PASS)
    spoil(stack)
    torch.nn.utils.clip_grad_norm_(stack.held.values(), case.limit, error_if_nonfinite=True)


def spoil(stack: TensorParallel) -> None:
    """Put infinity into this rank's first gradient, if it is the one."""
    if stack.case.spoilt >= 0:
        asks_for(Feature.ROW_LAYOUT)
    if stack.rank.number == stack.case.spoilt:
        own(next(iter(stack.held.values())).grad).view(-1)[0] = torch.inf
