"""The dtypes that modules meet in forward, and again when activations are recomputed.

A float32 root of two layers, of which the second, c2, computes in float16 and is recomputed in backward::

    forward    root: float32    c1: float32    c2: float16        backward    c2: float16
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.data.case import Case
from harness.worlds.rank import Rank
from suites.kit.cases import draw, fill
from suites.kit.programs import gradients

Notes = dict[str, list[str]]


@dataclass(frozen=True)
class CastCase(Case):
    """Two layers; the second has parameters of ``dtype`` and is recomputed, or only the Linear in it is."""

    world_size: int
    dim: int
    dtype: str
    strictly_inside: bool
    checkpoint_first: bool
    reshard_after_forward: bool
    seed: int

    @property
    def recomputed(self) -> str:
        """The module given to ``checkpoint``."""
        return "c2.inner" if self.strictly_inside else "c2"


class Noting(nn.Module):
    """Notes the dtype of what it is given, under its own name, and hands it to what is inside."""

    def __init__(self, name: str, notes: Notes, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._name, self._notes = name, notes

    def forward(self, x: Tensor) -> Tensor:
        """What is inside, of ``x``."""
        self._notes.setdefault(self._name, []).append(str(x.dtype).removeprefix("torch."))
        y: Tensor = self.inner(x)
        return y


class TwoLayers(nn.Module):
    """``c2(c1(x))``, where both note what they are given, as the root and the Linears in them do."""

    def __init__(self, dim: int, notes: Notes) -> None:
        super().__init__()
        self._notes = notes
        self.c1 = Noting("c1", notes, Noting("c1.inner", notes, nn.Linear(dim, dim)))
        self.c2 = Noting("c2", notes, Noting("c2.inner", notes, nn.Linear(dim, dim)))

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        self._notes.setdefault("", []).append(str(x.dtype).removeprefix("torch."))
        y: Tensor = self.c2(self.c1(x))
        return y


def noted(rank: Rank, case: CastCase, recompute: bool) -> dict[str, Any]:
    """After a forward and backward: each module's dtypes and how often it ran, and this rank's gradients."""
    notes: Notes = {}
    net = TwoLayers(case.dim, notes)
    fill(net, case.seed, exact=False)
    apply_to(rank, case, net, recompute)
    batch = draw((2, case.dim), case.seed + rank.number + 1, exact=False).float()
    net(batch.to(rank.device)).float().sum().backward()
    dtypes = {name: {"dtypes": sorted(set(seen)), "runs": len(seen)} for name, seen in notes.items()}
    return {"seen": dtypes, "gradients": gradients(net)}


def apply_to(rank: Rank, case: CastCase, net: nn.Module, recompute: bool) -> None:
    """Shard c2 in the case's dtype and the root in float32, and recompute what the case says."""
    shard, recomputing, policy = (getattr(rank.implementation, name) for name in FUNCTIONS)
    low = policy(param_dtype=getattr(torch, case.dtype), cast_forward_inputs=True)
    high = policy(param_dtype=torch.float32, cast_forward_inputs=True)
    options = {"mesh": rank.mesh(), "reshard_after_forward": case.reshard_after_forward}
    if recompute and case.checkpoint_first:
        recomputing(net.get_submodule(case.recomputed))
    shard(net.get_submodule("c2"), mp_policy=low, **options)
    if recompute and not case.checkpoint_first:
        recomputing(net.get_submodule(case.recomputed))
    shard(net, mp_policy=high, **options)


FUNCTIONS = ("fully_shard", "checkpoint", "mixed_precision_policy")


def both(rank: Rank, case: CastCase) -> list[dict[str, Any]]:
    """What is noted without recomputation and with it."""
    return [noted(rank, case, recompute) for recompute in (False, True)]


def expected(case: CastCase, recompute: bool) -> dict[str, Any]:
    """What must be noted: float32 but for c2, which runs twice where it is recomputed."""
    again = {"c2.inner", case.recomputed} if recompute else set()
    names = ("", "c1", "c1.inner", "c2", "c2.inner")
    dtypes = {name: case.dtype if name.startswith("c2") else "float32" for name in names}
    return {name: {"dtypes": [dtype], "runs": 1 + (name in again)} for name, dtype in dtypes.items()}
