"""Training where not all parameters are alike: frozen, tied or ignored ones.

On two ranks with gradients 1 and 3 a trainable parameter's gradient is 2 on both; a frozen one has none; an ignored one
has 1 on rank 0 and 3 on rank 1, full on both, so that from the second step ranks compute with different values of it.
With ``frozen=(("0.bias",), ())`` the bias of the first layer has no gradient in the first step and one in the second.

[Note: exact steps]
In float64 two linear layers, or one MLP, of dim at most 5 and multiplier at most 3 are exact for three steps: weights
are multiples of 2**-5 after one step and of 2**-10 after two, activations multiples of 2**-20 and, with weights below
2**8, losses below 2**30. If each module is called twice, so that a net is as deep as two MLPs, two steps are exact, as
the first note of ``tolerance.py`` says; and so they are with tied weights, whose gradients are sums of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.worlds.rank import Rank
from suites.kit.cases import Block, Stack, as_case, fill
from suites.kit.programs import apply, data_mesh
from suites.kit.strategies import training_cases
from suites.kit.trees import share
from suites.oracle.sharded import Resting
from suites.parameters.apart import ApartCase

TWO: tuple[Block, ...] = ("linear", "linear")
#: What stays exact for three steps: see the note.
BLOCKS: list[tuple[Block, ...]] = [TWO, ("mlp",)]


@dataclass(frozen=True)
class ParameterCase(ApartCase):
    """Training with parameters that are frozen, tied or ignored.

    ``frozen`` are the names that have no gradient, step by step; before sharding those of the first step, unless
    ``late``. In ``silent`` steps there is a forward without gradients first. Each module runs as ``calls`` says: once
    for every entry, recorded or not. ``tied`` are pairs of names, the first holding what the second holds. ``grouped``
    modules are sharded as one list.
    """

    frozen: tuple[tuple[str, ...], ...] = ()
    late: bool = False
    silent: tuple[int, ...] = ()
    recomputed: bool = False
    calls: tuple[bool, ...] = (True,)
    tied: tuple[tuple[str, str], ...] = ()
    grouped: bool = False
    ignored: tuple[str, ...] = ()

    def build(self) -> nn.Sequential:
        """The net with its ties, and weights drawn from the seed; nothing is frozen yet."""
        net = Calling(self.net, self.calls, self.recomputed).to(self.torch_dtype)
        for place, source in self.tied:
            share(net, place, source)
        fill(net, self.seed, self.exact)
        return net

    def build_value(self, value: int) -> nn.Sequential:
        """What is ignored starts alike on all ranks."""
        return self.build()

    def is_apart(self, name: str) -> bool:
        """What is ignored is every rank's own."""
        return name in self.ignored

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net recomputes nothing."""
        vars(net)["recomputed"] = False
        return net

    @property
    def actions(self) -> tuple[str, ...]:
        """Steps, before each of which something may be frozen or thawed, and run without gradients."""
        return tuple(action for step in range(self.steps) for action in self.step(step))

    def step(self, step: int) -> Iterator[str]:
        """One of them; where all is frozen there is no backward, so that nothing reshards by itself."""
        before, frozen = (
            set(self.frozen[place]) if self.frozen and place >= 0 else set() for place in (step - 1, step)
        )
        yield from (f"thaw {name}" for name in sorted(before - frozen))
        yield from (f"freeze {name}" for name in sorted(frozen - before))
        if step in self.silent:
            yield from ("look", "reshard")
        trains = set(self.parameter_names) - frozen
        yield from ("forward", "backward" if trains else "reshard", "step", "drop")


class Calling(nn.Sequential):
    """Modules one after the other, each called as often as ``calls`` has entries, and recorded where they are true."""

    def __init__(self, net: Stack, calls: tuple[bool, ...], recomputed: bool) -> None:
        super().__init__(*net.build())
        self.calls, self.recomputed = calls, recomputed

    def forward(self, x: Tensor) -> Tensor:
        """An unrecorded call adds to what it is given, so that gradients go on past it."""
        for module in self:
            for recorded in self.calls:
                if recorded:
                    x = checkpoint(module, x, use_reentrant=False) if self.recomputed else module(x)
                else:
                    with torch.no_grad():
                        more = module(x)
                    x = x + more
        return x


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


@st.composite
def frozen_cases(draw: st.DrawFn, /, steps: int = 2, changing: bool = False, **fixed: Any) -> ParameterCase:
    """Some parameters frozen, never all; others in every step if ``changing``, with silent forwards between."""
    case = draw(parameter_cases(steps=steps, **fixed))
    names = case.parameter_names
    some = st.sets(st.sampled_from(names), max_size=len(names) - 1).map(lambda drawn: tuple(sorted(drawn)))
    first = draw(some.filter(bool) if len(names) > 1 else some)
    frozen = (first, *(draw(some) for _ in range(steps - 1))) if changing else (first,) * steps
    silent = tuple(sorted(draw(st.sets(st.integers(0, steps - 1))))) if changing else ()
    return replace(case, frozen=frozen, silent=silent, late=draw(st.booleans()))


@st.composite
def ignored_cases(draw: st.DrawFn) -> ParameterCase:
    """One or more parameters ignored, never all; some of them are tied across groups, which is allowed only so."""
    case = draw(parameter_cases())
    tied = case.net.blocks == TWO and draw(st.booleans())
    case = replace(case, tied=(("1.weight", "0.weight"),)) if tied else case
    some = st.sets(st.sampled_from(case.parameter_names), min_size=1, max_size=max(1, len(case.parameter_names) - 1))
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
