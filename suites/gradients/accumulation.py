"""Gradient accumulation: several backwards a step, of which not all communicate. Imports no ``torch.distributed``.

Two ranks, two micro-batches with gradients 1 and 3 on rank 0, 5 and 7 on rank 1: whatever is reduced when, the step is
taken with (1 + 3 + 5 + 7) / 2 = 8. A parameter of the blocks that are ``quiet`` stays unreduced until the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suites.kit.cases import Stack, TrainingCase, as_case
from suites.kit.expected_collectives import ROOT, Unit, units
from suites.kit.hsdp import hsdp_meshes
from suites.kit.precision import SCALE, PrecisionCase
from suites.kit.strategies import training_cases


@dataclass(frozen=True)
class AccumulationCase(TrainingCase):
    """Steps of some micro-batches each, of which only the last is reduced as usual.

    ``quiet`` says whose reductions are off until then: "all", by one call on the root; "root", the root's own only; or
    "some", those of the block that was sharded first. ``kept`` says for each step, in turn, whether gradients are
    zeroed after it, rather than dropped.
    """

    micro: int = 2
    quiet: str = "all"
    kept: tuple[bool, ...] = (False,)
    #: Whether all is unsharded explicitly before a step; for pipelines.
    by_hand: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        """Micro-batches, whenever they are reduced."""
        passes = ("forward", "backward") * self.micro
        return tuple(
            action
            for step in range(self.steps)
            for action in (*passes, "step", "zero" if self.is_kept(step) else "drop")
        )

    def is_kept(self, step: int) -> bool:
        """Whether gradients are zeroed after this step."""
        return self.kept[step % len(self.kept)]

    def loud(self) -> list[Unit]:
        """The units that are reduced with every micro-batch."""
        silent = {"all": None, "root": ROOT, "some": str(self.sharded[0]) if self.sharded else ""}[self.quiet]
        return [unit for unit in units(self) if silent is not None and unit.name != silent]


@st.composite
def accumulation_cases(draw: st.DrawFn, /, replicas: bool = False, quiet: str = "all", **fixed: Any) -> Any:
    """Exact training of micro-batches; where two steps are taken, in float64 and on small nets (see tolerance.py)."""
    if replicas:
        mesh = draw(hsdp_meshes(2, power_of_two=True))
        fixed = {"mesh": mesh, "world_size": mesh[0] * mesh[1], **fixed}
    dtype = fixed.pop("dtype", None) or draw(st.sampled_from(["float64", "float32"]))
    blocks = st.lists(st.sampled_from(["linear", "mlp"]), min_size=1, max_size=1 if dtype == "float32" else 2).map(
        tuple
    )
    net = Stack(draw(st.integers(1, 4)), draw(blocks), draw(st.integers(1, 2)), draw(st.booleans()))  # type: ignore[arg-type]
    if quiet == "some":
        fixed.setdefault("sharded", tuple(range(len(net.blocks))))
    by_hand = fixed.pop("by_hand", False)
    case = draw(training_cases(exact=True, dtype=dtype, net=net, **fixed))
    kept = draw(st.lists(st.booleans(), min_size=1, max_size=2).map(tuple))
    micro = draw(st.integers(2, 3))
    return as_case(AccumulationCase, case, micro=micro, quiet=quiet, kept=kept, by_hand=by_hand)


# Sums that low precision would round.


@dataclass(frozen=True)
class FineCase(PrecisionCase):
    """Micro-batches of very different sizes: each gradient is exact in bfloat16, their sum only in float32.

    See the notes of ``precision.py``: the first micro-batch is 2**11 times as large as the second, and its gradients
    are integers of at most 28 · 2**11; the sum of both over four ranks is below 2**18, which 24 bits hold.
    """

    @property
    def actions(self) -> tuple[str, ...]:
        """Two micro-batches, of which the second alone is reduced."""
        return ("defer gradient_sync", "forward", "backward", "resume gradient_sync", "forward", "backward", "step")

    def inputs(self, step: int, rank: int) -> Tensor:
        """A large micro-batch, then a small one."""
        return super().inputs(step, rank) * (SCALE, 1.0)[step]


# Two results of one forward.


class Fork(nn.Module):
    """Two blocks on one input: what is drawn from one need not be drawn from the other."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both results."""
        return self.left(x), self.right(x)


def fork(case: TrainingCase) -> Fork:
    """The case's net twice, with other weights."""
    return Fork(case.build(), replace(case, seed=case.seed + 1).build())


def fork_gradients(case: TrainingCase) -> dict[str, Tensor]:
    """The mean over ranks of the gradients of both losses."""
    net = fork(case).double()
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in net.named_parameters()}
    for rank in range(case.world_size):
        left, right = net(case.inputs(0, rank).double())
        loss = case.loss(left, 0, rank) + case.loss(right, 1, rank)
        for name, gradient in zip(total, torch.autograd.grad(loss, list(net.parameters())), strict=True):
            total[name] += gradient / case.world_size
    return total
