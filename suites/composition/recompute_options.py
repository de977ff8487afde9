"""The options of ``checkpoint``: contexts, checks and keywords; what is drawn, and what runs on ranks.

With a ``context_fn``, a module that is recomputed leaves this log::

    forward in, run, forward out        recompute in, run, recompute out
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.data.case import Case
from harness.worlds.rank import Rank
from suites.composition.recompute import RecomputeCase, chain, checkpointed, trained
from suites.kit.expected_collectives import tallied, tells_nothing
from suites.kit.strategies import world_sizes

#: Everything that can be recomputed of a chain of three: itself, or some of its layers.
PLACES = ("layers.0", "layers.1", "layers.2", "layers.1.linear", "")


@dataclass(frozen=True)
class KeywordCase(Case):
    """A keyword that ``checkpoint`` does not know."""

    world_size: int = 1
    keyword: str = "recompute"


@st.composite
def recompute_cases(draw: st.DrawFn, /, **fixed: Any) -> RecomputeCase:
    """Chains of up to three layers, of which any may be recomputed, also one within another."""
    layers = draw(st.integers(1, 3))
    places = [place for place in PLACES if not place or int(place.split(".")[1]) < layers]
    return RecomputeCase(**{
        "dim": draw(st.integers(1, 4)),
        "layers": layers,
        "recomputed": tuple(draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))),
        "twice": draw(st.booleans()),
        "input_gradients": draw(st.booleans()),
        "early_stop": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
        **fixed,
    })  # fmt: skip


@st.composite
def whole_layers(draw: st.DrawFn, /, **fixed: Any) -> RecomputeCase:
    """Chains of which some layers are recomputed, none within another."""
    layers = draw(st.integers(1, 3))
    places = st.sampled_from([f"layers.{place}" for place in range(layers)])
    chosen = draw(st.lists(places, min_size=1, unique=True))
    return draw(recompute_cases(layers=layers, recomputed=tuple(chosen), **fixed))


@st.composite
def sharded_cases(draw: st.DrawFn) -> RecomputeCase:
    """Chains with dropout, sharded and recomputed in either order."""
    return draw(whole_layers(dropout=0.5, **draw(shardings)))


@st.composite
def cast_cases(draw: st.DrawFn) -> RecomputeCase:
    """Any low dtype in the last of two layers, and ``checkpoint`` there or further inside."""
    place = draw(st.sampled_from(["layers.1", "layers.1.linear"]))
    low = draw(st.sampled_from(["float16", "bfloat16"]))
    return draw(recompute_cases(layers=2, recomputed=(place,), twice=False, low=low, **draw(shardings)))


#: How chains are sharded: before or after they are given to ``checkpoint``.
shardings = st.fixed_dictionaries(
    {
        "world_size": world_sizes(2),
        "sharded": st.just(True),
        "checkpoint_first": st.booleans(),
        "reshard_after_forward": st.booleans(),
    }
)


def contexts_entered(rank: Rank, case: RecomputeCase) -> list[str]:
    """What happened in what order, of one pass of a net whose last layer is recomputed with a ``context_fn``."""
    log: list[str] = []

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        log.append(f"{name} in")
        try:
            yield
        finally:
            log.append(f"{name} out")

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return noted("forward"), noted("recompute")

    net = chain(rank, case, recompute=False)
    net.each[-1].log = log
    checkpointed(rank, net.each[-1], context_fn=contexts, **case.options())
    output = net(*case.inputs(rank))
    log.append("backward")
    output.sum().backward()
    return log


RUN = "run in torch.float32"
CONTEXTS = ["forward in", RUN, "forward out", "backward", "recompute in", RUN, "recompute out"]


class Fickle(nn.Module):
    """``x · w``, where from the second run on ``w`` has one more dim of size 1: the same numbers by other tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        """``(2,)`` to ``(2,)``."""
        self.runs += 1
        return (x * (self.weight if self.runs == 1 else self.weight[None])).reshape(2)


def recomputes_otherwise(rank: Rank, case: Case, **options: Any) -> Tensor | None:
    """The gradient of an input, by a weight that is saved with other dims when it is recomputed."""
    net = Fickle().to(rank.device)
    checkpointed(rank, net, **options)
    x = torch.ones(2, device=rank.device, requires_grad=True)
    net(x).sum().backward()
    return x.grad


def recomputes_unchecked(rank: Rank, case: Case) -> Tensor | None:
    """The same, where nothing is to be checked."""
    return recomputes_otherwise(rank, case, determinism_check="none")


def asks_for_reentry(rank: Rank, case: Case) -> None:
    """Ask for the reentrant kind of recomputation."""
    checkpointed(rank, nn.Linear(2, 2), use_reentrant=True)


def with_keyword(rank: Rank, case: KeywordCase) -> None:
    """Give ``checkpoint`` the case's keyword."""
    checkpointed(rank, nn.Linear(2, 2), **{case.keyword: True})


def twice_on_one(rank: Rank, case: RecomputeCase) -> None:
    """Give one module to ``checkpoint`` two times."""
    net = chain(rank, case)
    checkpointed(rank, net.get_submodule(case.recomputed[0]))


def collectives(rank: Rank, case: RecomputeCase) -> list[dict[str, int]]:
    """How often a pass makes which collective, without recomputation and with it."""
    return [collectives_of(rank, case, recompute) for recompute in (False, True)]


def collectives_of(rank: Rank, case: RecomputeCase, recompute: bool) -> dict[str, int]:
    """How often one pass makes which collective, but for the first pass."""
    net = chain(rank, case, recompute)
    trained(rank, case, net)
    with rank.collectives() as entries:
        trained(rank, case, net)
    return tallied(entry["op"] for entry in entries if not tells_nothing(entry))
