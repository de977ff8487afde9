"""Nets to which several functions are applied: what is called on what, and what each rank then holds.

The nesting ``1fm,1r`` of two ranks, a weight of four rows in each block::

    fully_shard(net.0)    0.weight: rows 0, 1 on rank 0 and rows 2, 3 on rank 1
    replicate(net)        1.weight: rows 0 … 3 on both, with the mean of both gradients
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from harness.data.case import Case
from suites.kit.cases import Block, Stack, TrainingCase
from suites.kit.trees import share
from suites.oracle.situation import PASS

#: These cut parameters; the capital ones are called by their names in ``Strategies.shard``.
CUTTING = ("fully_shard", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD")

Composable = Literal["fully_shard", "replicate", "replicate_fsdp", "checkpoint"]
Strategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"]
Function = Composable | Strategy
Route = Literal["", "halves", "tied", "repeated", "cast", "method", "prefetch", "accumulated", "compiled", "listed"]


class Unit(nn.Sequential):
    """An MLP and a Linear: what policies choose by class, with something inside to choose as well."""


class OwnUnit(Unit):
    """One of a class derived from that."""


class Rooted(nn.Sequential):
    """Blocks, and a square parameter of its own that their output is multiplied by."""

    def __init__(self, dim: int, blocks: Iterable[nn.Module]) -> None:
        super().__init__(*blocks)
        self.own = nn.Parameter(torch.empty(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        return self.run(x)

    def run(self, x: Tensor) -> Tensor:
        """What forward does, by another name."""
        for block in self:
            x = block(x)
        return x @ self.own


@dataclass(frozen=True)
class Composite(Stack):
    """A ``Stack`` whose nested blocks are ``Unit``s; with ``own``, the root has a parameter of its own."""

    own: bool = False

    def build(self) -> nn.Sequential:
        """The net, on the current default device."""
        blocks = super().build()
        return Rooted(self.dim, blocks) if self.own else blocks

    def _block(self, name: Block) -> nn.Module:
        block = super()._block(name)
        return OwnUnit(*block.children()) if name == "nested" else block

    @property
    def units(self) -> list[str]:
        """The names of the units."""
        return [str(place) for place, block in enumerate(self.blocks) if block == "nested"]


@dataclass(frozen=True)
class Call(Case):
    """One call: ``function`` on the module called ``place``, after those inside it whose class is named ``chosen``.

    Where a policy chooses them, it chooses by class, or is a ``plain`` function of a module.
    """

    function: Function
    place: str = ""
    chosen: str = ""
    plain: bool = False


#: What comes before a step, where that is not a forward and a backward.
PASSES: dict[str, tuple[str, ...]] = {
    "halves": ("forward", "forward", "backward all"),
    "accumulated": ("defer gradient_sync", *PASS, "resume gradient_sync", *PASS),
}


@dataclass(frozen=True)
class ComposedCase(TrainingCase):
    """Some steps of training a net to which ``calls`` are applied in order, by a route that changes no result.

    Of the routes, ``halves`` runs forward twice before backward; ``tied`` is a net whose units share a weight, and
    ``repeated`` one in which they are the same module; ``cast`` builds in float64 and casts what is composed;
    ``method`` runs forward by another method; ``prefetch`` tells each module which one comes next; ``accumulated`` has
    a batch that is not reduced before another; ``compiled`` compiles modules in place before anything is applied to
    them; ``listed`` gives ``fully_shard`` all blocks in one list.
    """

    net: Composite
    calls: tuple[Call, ...] = ()
    same_inputs: bool = False
    adam: bool = False
    set_to_none: bool = True
    route: Route = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """All that is done; if nothing is said, the passes of each step."""
        return self.acts or (*PASSES.get(self.route, PASS), "step", "drop" if self.set_to_none else "zero") * self.steps

    def shown(self, place: int) -> Sequence[str]:
        """All as usual, but for the gradients of a batch that is not reduced: they are a rank's own, or not there."""
        waits = self.actions[max(place - 2, 0)].startswith("defer")
        return () if waits else super().shown(place)

    def build(self) -> nn.Sequential:
        """The net; where it is tied, the second unit has the first one's weight, or is the first one."""
        net = super().build()
        if self.route == "tied":
            share(net, "2.1.weight", "1.1.weight")
        if self.route == "repeated":
            net[2] = net[1]
        return net

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What the net gives, by its other method if that is the route."""
        return super().run(net.run if self.route == "method" else net, batch, rank, dtype, device)

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """Its rows of what is cut; of anything else all."""
        return super().part(rank, name, full) if forms(self)[name] == "cut" else full

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """SGD or Adam, which go over parameters one by one: plain and sharded ones are not updated by one call.

        The large ``eps`` keeps an update in proportion to its gradient, so that rounding errors are not blown up.
        """
        if self.adam:
            return torch.optim.Adam(parameters, lr=self.learning_rate, eps=self.learning_rate, foreach=False)
        return torch.optim.SGD(parameters, lr=self.learning_rate, foreach=False)

    def numbers(self, shape: tuple[int, ...], *salt: int) -> Tensor:
        """Data of a rank, which ends ``salt``; where no call takes care of a parameter, all must have the same."""
        *what, rank = salt
        return super().numbers(shape, *what, 0 if self.same_inputs or not all(spread_by(self).values()) else rank)

    def divisor_of_sum(self, name: str) -> float:
        """One; where no call takes care of a parameter, ranks have the same gradient, and none is added."""
        return 1.0 if spread_by(self)[name] else self.world_size


#: Bottom-up, a comma per level of the tree; f: fully_shard, r: replicate, m: explicit, a: what a policy chooses, too.
NESTINGS: dict[str, tuple[Call, ...]] = {
    "1fm,1r": (Call("fully_shard", "0"), Call("replicate")),
    "1r,1fm": (Call("replicate", "1"), Call("fully_shard")),
    "1r,1fa": (Call("replicate", "1"), Call("fully_shard", chosen="Unit")),
    "1r1fm,1fm": (Call("replicate", "1"), Call("fully_shard", "2"), Call("fully_shard")),
    "1r1fa,1fm": (Call("replicate", "1"), Call("fully_shard", "2", chosen="Linear"), Call("fully_shard")),
    "1fm1fm,1r1r,1fm": (
        Call("fully_shard", "1.0"),
        Call("fully_shard", "2.0"),
        Call("replicate", "1"),
        Call("replicate", "2"),
        Call("fully_shard"),
    ),
}


def nesting(name: str, by_policy: bool = False) -> tuple[Call, ...]:
    """The calls of a nesting; with ``by_policy``, policies do the choosing."""
    calls = NESTINGS[name]
    return tuple(replace(call, function="FULL_SHARD") if by_policy and call.chosen else call for call in calls)


def chosen(net: nn.Module, call: Call, taken: Iterable[str]) -> list[str]:
    """The modules that a call is meant for, children before parents and its own place last, but for those ``taken``."""
    top = net.get_submodule(call.place)
    inside = [name for name, module in top.named_modules() if name and type(module).__name__.endswith(call.chosen)]
    below = [f"{call.place}.{name}".lstrip(".") for name in reversed(inside)] if call.chosen else []
    return [*(name for name in below if name not in taken), call.place]


@lru_cache(maxsize=64)
def spread_by(case: ComposedCase) -> dict[str, str]:
    """By the names of parameters, the function that spreads each: that of the innermost module; else ``""``."""
    net, functions = case.build(), dict[str, str]()
    for call in case.calls:
        if call.function != "checkpoint":
            functions.update(dict.fromkeys(chosen(net, call, functions), call.function))
    names = [name for name, _ in net.named_parameters()]
    return {name: next((functions[up] for up in upwards(name) if up in functions), "") for name in names}


def upwards(name: str) -> Iterator[str]:
    """The modules that a parameter is in, innermost first: of ``"1.0.weight"``, ``"1.0"``, ``"1"`` and ``""``."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def first_names(case: ComposedCase) -> dict[str, str]:
    """Of every name that a parameter has, the first one that it has."""
    net = case.build()
    first = {parameter: name for name, parameter in net.named_parameters()}
    return {name: first[parameter] for name, parameter in net.named_parameters(remove_duplicate=False)}


def forms(case: ComposedCase) -> dict[str, str]:
    """Whether each parameter is cut or whole on every rank."""
    return {name: "cut" if function in CUTTING else "whole" for name, function in spread_by(case).items()}


def forms_after_forward(case: ComposedCase) -> dict[str, str]:
    """The form of each parameter between forward and backward, but for the root's where it may be either."""
    [function] = {call.function for call in case.calls}
    if function in ("SHARD_GRAD_OP", "NO_SHARD"):
        return dict.fromkeys(forms(case), "whole")
    units = tuple(f"{unit}." for unit in case.net.units)
    return {name: form for name, form in forms(case).items() if name.startswith(units)}
