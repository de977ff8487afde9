"""Nets of which some parameters are ignored when they are sharded: these stay full, and are every rank's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.vendor import Feature
from harness.vendor.bounds import claims
from suites.kit.cases import Stack, as_case, fill
from suites.kit.programs import sharded
from suites.kit.strategies import training_cases
from suites.kit.trees import share
from suites.oracle.layout import is_dtensor
from suites.oracle.sharded import Resting
from suites.parameters.apart import ApartCase


class Around(nn.Module):
    """Scales what the module inside gives, by a number of its own, which could not be sharded."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.tensor(1.0)), inner

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.inner(x) * self.scale


@dataclass(frozen=True)
class IgnoredCase(ApartCase):
    """Training of a net of which some parameters are ignored; ``tied`` ones are so across groups.

    With ``around`` the first block is within a module whose own parameter is ignored.
    """

    ignored: tuple[str, ...] = ()
    tied: bool = False
    around: bool = False

    def build(self) -> nn.Sequential:
        """The net with its ties."""
        net = self.net.build()
        if self.around:
            net[0] = Around(net[0])
        net.to(self.torch_dtype)
        if self.tied:
            share(net, "1.weight", "0.weight")
        fill(net, self.seed, self.exact)
        return net

    def build_value(self, value: int) -> nn.Sequential:
        """What is ignored starts alike on all ranks."""
        return self.build()

    def is_apart(self, name: str) -> bool:
        """What is ignored is every rank's own."""
        return name in self.ignored


#: Whether layers are tied, whether there are two, and whether the first is within another module.
KINDS = [(True, True, False), (False, True, True), (False, True, False), (False, False, False)]


@st.composite
def ignored_cases(draw: st.DrawFn) -> IgnoredCase:
    """One or more parameters ignored, never all, of two linear layers or an MLP; some are tied across groups.

    Some are those of a module around a layer.
    """
    tied, linear, around = draw(st.sampled_from(KINDS))
    blocks = ("linear", "linear") if linear else ("mlp",)
    net = Stack(draw(st.integers(1, 5)), blocks, draw(st.integers(1, 3)), draw(st.booleans()))  # type: ignore[arg-type]
    case = draw(training_cases(exact=True, dtype="float64", net=net, steps=2))
    found = as_case(IgnoredCase, case, tied=tied, around=around)
    names, always = found.parameter_names, ["0.weight"] * tied + ["0.scale"] * around
    ignored = draw(st.sets(st.sampled_from(names), min_size=1, max_size=max(1, len(names) - 1)))
    return as_case(IgnoredCase, found, ignored=tuple(sorted({*ignored, *always})))


class Ignoring(Resting):
    """The net of a case, on one rank."""

    def made(self) -> Any:
        """The net, sharded but for what is ignored."""
        net = self.built()
        self.before = dict(net.named_parameters())
        ignored = {self.before[name] for name in self.case.ignored}
        return sharded(self.rank, self.case, net, ignored_params=ignored)

    def built(self) -> nn.Sequential:
        """The net before it is sharded."""
        return self.case.build().to(self.rank.device)  # type: ignore[no-any-return]

    def see_same(self) -> dict[str, bool]:
        """Of what is ignored, whether it is the very one that the net had; of all else, whether it is sharded."""
        told = Feature.DTENSORS in claims()
        return {
            name: parameter is self.before[name] if name in self.case.ignored else is_dtensor(parameter) or not told
            for name, parameter in self.held.items()
        }

    def see_names(self) -> list[str]:
        """The names of what is registered, in order: optimizers number parameters by it."""
        return [name for name, _ in self.net.named_parameters()]


class IgnoringOnce(Ignoring):
    """The same, where only the call that a parameter would belong to is told to ignore it."""

    def made(self) -> Any:
        """The net, sharded but for what is ignored."""
        net, case = self.built(), self.case
        self.before = dict(net.named_parameters())
        calls = {net.get_submodule(place): place or "root" for place in (*map(str, case.sharded), "")}

        def shard(module: nn.Module, **options: Any) -> None:
            ignored = {self.before[name] for name in case.ignored if case.group_of(name) == calls[module]}
            self.rank.implementation.fully_shard(module, ignored_params=ignored, **options)

        return sharded(self.rank, case, net, function=shard)


class IgnoringOnMeta(Ignoring):
    """The same, on meta."""

    def built(self) -> nn.Sequential:
        """The net without memory."""
        with torch.device("meta"):
            return self.case.build()  # type: ignore[no-any-return]
