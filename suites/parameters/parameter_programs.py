"""Frozen, tied and ignored parameters on ranks: what is drawn, and what runs.

With ``frozen=(("0.bias",), ())`` the bias of the first layer has no gradient in the first step and one in the second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from torch import nn

from harness.worlds.rank import Rank
from suites.kit.cases import Block, NetCase, Stack, as_case
from suites.kit.programs import apply, data_mesh
from suites.kit.strategies import training_cases
from suites.oracle.sharded import Resting
from suites.parameters.parameters import ParameterCase

TWO: tuple[Block, ...] = ("linear", "linear")
#: What stays exact for three steps: see the note of ``parameters.py``.
BLOCKS: list[tuple[Block, ...]] = [TWO, ("mlp",)]


@st.composite
def parameter_cases(draw: st.DrawFn, /, steps: int = 2, **fixed: Any) -> ParameterCase:
    """Exact training of two linear layers, or of one MLP."""
    own = {name: fixed.pop(name) for name in ("calls", "tied", "grouped") if name in fixed}
    net = Stack(
        draw(st.integers(1, 5)),
        fixed.pop("blocks", None) or draw(st.sampled_from(BLOCKS)),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )
    case = draw(training_cases(**{"exact": True, "dtype": "float64", "net": net, "steps": steps, **fixed}))
    found: ParameterCase = as_case(ParameterCase, case, recomputed=draw(st.booleans()), **own)
    return found


def names(case: NetCase) -> list[str]:
    """The names of the net's parameters."""
    return [name for name, _ in case.build().named_parameters()]


@st.composite
def frozen_cases(draw: st.DrawFn, /, steps: int = 2, changing: bool = False, **fixed: Any) -> ParameterCase:
    """Some parameters frozen, never all; others in every step if ``changing``, with silent forwards between."""
    case = draw(parameter_cases(steps=steps, **fixed))
    some = st.sets(st.sampled_from(names(case)), max_size=len(names(case)) - 1).map(lambda drawn: tuple(sorted(drawn)))
    first = draw(some.filter(bool) if len(names(case)) > 1 else some)
    frozen = (first, *(draw(some) for _ in range(steps - 1))) if changing else (first,) * steps
    silent = tuple(sorted(draw(st.sets(st.integers(0, steps - 1))))) if changing else ()
    return replace(case, frozen=frozen, silent=silent, late=draw(st.booleans()))


@st.composite
def ignored_cases(draw: st.DrawFn) -> ParameterCase:
    """One or more parameters ignored, never all; some of them are tied across groups, which is allowed only so."""
    case = draw(parameter_cases())
    tied = case.net.blocks == TWO and draw(st.booleans())
    case = replace(case, tied=(("1.weight", "0.weight"),)) if tied else case
    some = st.sets(st.sampled_from(names(case)), min_size=1, max_size=max(1, len(names(case)) - 1))
    ignored = {*draw(some), *(["0.weight"] if tied else [])}
    return replace(case, ignored=tuple(sorted(ignored)))


class ShardedParameters(Resting):
    """The net of a case, on one rank."""

    def made(self) -> nn.Sequential:
        """What is frozen first is so before sharding, unless it is to be late."""
        net = self.case.build().to(self.rank.device)
        for name in self.case.frozen[0] if self.case.frozen and not self.case.late else ():
            net.get_parameter(name).requires_grad_(False)
        shard(self.rank, self.case, net)
        return net  # type: ignore[no-any-return]


def shard(rank: Rank, case: ParameterCase, net: nn.Sequential) -> None:
    """Shard the case's blocks, one by one or as one list, then the root; leave out what is ignored."""
    named = dict(net.named_parameters(remove_duplicate=False))
    options: dict[str, Any] = {"reshard_after_forward": case.reshard_after_forward}
    if case.ignored:
        options["ignored_params"] = {named[name] for name in case.ignored}
    if not case.grouped:
        apply(rank, case, net, **options)
        return
    fully_shard, mesh = rank.implementation.fully_shard, data_mesh(rank, case)
    assert fully_shard is not None
    fully_shard(list(net), mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)


def is_plain(rank: Rank, case: ParameterCase) -> dict[str, bool]:
    """Of every parameter, whether it is the very one that the net had before it was sharded."""
    net = case.build().to(rank.device)
    before = dict(net.named_parameters())
    shard(rank, case, net)
    return {name: parameter is before[name] for name, parameter in net.named_parameters()}


def elements_reduced(rank: Rank, case: ParameterCase) -> int:
    """How many elements each rank hands to reductions in one step."""
    net = ShardedParameters(rank, case)
    with rank.collectives() as entries:
        net.forward("")
        net.backward("")
    return sum(entry["input"]["numel"] for entry in entries if entry["reduce"])
