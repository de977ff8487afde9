"""Small nets and programs for what ``fully_shard`` takes, gives back and refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.placement_types import Shard

from harness.data.case import Case
from harness.trial.refusals import as_data
from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.oracle.layout import even, put_together
from suites.passes.passes import Blocks


@dataclass(frozen=True)
class PlainCase(Case):
    """Nothing varies but the number of ranks, and in which ``way`` something is refused."""

    world_size: int = 2
    way: str = ""


#: ``fully_shard`` over a mesh that is given already.
Sharder = Callable[..., Any]
#: What most requirements here are tried with.
TWO = PlainCase()


def linear(rows: int = 3, columns: int = 2, bias: bool = False) -> nn.Linear:
    """A layer whose weights count from 1: [[1, 2], [3, 4], [5, 6]]; with 4 for 3 where two ranks cannot share 3."""
    rows, columns = (even(n) if n % 2 else n for n in (rows, columns))
    layer = nn.Linear(columns, rows, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(1.0, 1 + rows * columns).view(rows, columns))
    return layer


def sharder(rank: Rank) -> Sharder:
    """``fully_shard`` over all ranks."""
    return partial(rank.implementation.fully_shard, mesh=rank.mesh())


# What is given back.


def given_back(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """What comes back for a list of modules and for a module; and then classes, names, and what a slice is."""
    net: Any = case.build()
    before = {name: type(module) for name, module in net.named_modules()}
    asks_for(Feature.MODULE_CLASS)
    kind = rank.implementation.module_class
    listed = [net[place] for place in case.sharded]
    returned = {"list": not listed or sharder(rank)(listed) is listed, "module": sharder(rank)(net) is net}
    part, modules = net[:-1], dict(net.named_modules())
    return {
        "returned": returned,
        "still what it was": {name: isinstance(module, before.get(name, ())) for name, module in modules.items()},
        "sharded": [name for name, module in modules.items() if isinstance(module, kind)],
        "untouched": [name for name, module in modules.items() if type(module) is before.get(name)],
        "names": names_of(net),
        "slice": {
            "is sharded": isinstance(part, kind),
            "is a Sequential": isinstance(part, nn.Sequential),
            "same": [one is other for one, other in zip(part, net, strict=False)],
        },
    }


def names_of(net: nn.Module) -> dict[str, list[str]]:
    """The names of parameters, buffers and modules, in their order."""
    kinds = {"parameters": net.named_parameters(), "buffers": net.named_buffers(), "modules": net.named_modules()}
    return {kind: [name for name, _ in named] for kind, named in kinds.items()}


def nested_in_a_list(rank: Rank, case: PlainCase) -> dict[str, bool]:
    """Which modules of a list become sharded ones, where one lies within another; the list may name the inner first."""
    asks_for(Feature.MODULE_CLASS)
    facts, kind = {}, rank.implementation.module_class
    for order in ("outer first", "inner first"):
        outer, beside = nn.Sequential(linear(), nn.Sequential(linear(2, 3))), linear(2, 2)
        given = [outer, outer[1], beside] if order == "outer first" else [outer[1], outer, beside]
        sharder(rank)(given)
        found = {"outer": outer, "inner": outer[1], "beside": beside}
        facts.update({f"{order}: {name}": isinstance(module, kind) for name, module in found.items()})
    return facts


class InARow(nn.Module):
    """Modules that run one after the other."""

    def forward(self, x: Tensor) -> Any:
        """``(…, 2)`` to the same."""
        for module in self.children():
            x = module(x)
        return x


class ListWithForward(InARow, nn.ModuleList):
    """A list of modules that can run."""


class DictWithForward(InARow, nn.ModuleDict):
    """Named modules that can run."""


def outputs_of_containers(rank: Rank, case: PlainCase) -> list[Tensor]:
    """What sharded containers with a forward of their own give for ones."""
    containers = [ListWithForward([linear(), linear(2, 3)]), DictWithForward({"a": linear(), "b": linear(2, 3)})]
    return [sharder(rank)(each)(torch.ones(1, 2, device=rank.device)).detach() for each in containers]


def ranks_of_the_default_mesh(rank: Rank, case: PlainCase) -> list[Any]:
    """The ranks of the mesh that a parameter lies on where none was given."""
    net = rank.implementation.fully_shard(linear())
    asks_for(Feature.DTENSORS)
    return [parameter.device_mesh.mesh.tolist() for parameter in net.parameters()]


class WithEmpty(Blocks):
    """Before every block, a module without parameters."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks = nn.ModuleList(module for block in self.blocks for module in (nn.ReLU(), block))


def needs_gradients(rank: Rank, case: TrainingCase) -> dict[str, bool]:
    """Whether each sharded parameter needs a gradient, of a net in which every other one does."""
    net = case.build()
    for place, parameter in enumerate(net.parameters()):
        parameter.requires_grad_(place % 2 == 0)
    return {name: parameter.requires_grad for name, parameter in sharder(rank)(net).named_parameters()}


# What is refused.


class Scaled(nn.Linear):
    """A layer that has a parameter without dims."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = nn.Parameter(torch.tensor(1.0))


def run_a_list_as_root(shard: Sharder, rank: Rank) -> None:
    """Run a module of a list that was sharded together, with no root above."""
    first, second = shard([linear(), linear(2, 3)])
    second(first(torch.ones(1, 2, device=rank.device)))


#: What is done, by a word for it, with ``fully_shard`` over all ranks.
REFUSED: dict[str, Callable[[Sharder, Rank], object]] = {
    "twice": lambda shard, _: shard(shard(linear())),
    "list": lambda shard, _: shard(nn.ModuleList([linear()])),
    "dict": lambda shard, _: shard(nn.ModuleDict({"a": linear()})),
    "deepcopy": lambda shard, _: copy.deepcopy(shard(linear())),
    "scalars": lambda shard, _: shard(Scaled()),
    "nameless axes": lambda shard, rank: shard(linear(), mesh=rank.mesh((1, rank.size))),
    "dims": lambda shard, _: shard(linear(2, 2, bias=True), shard_placement_fn=lambda parameter: Shard(1)),
    "placements": lambda shard, _: shard(linear(), shard_placement_fn=lambda parameter: 0),
    "list as root": run_a_list_as_root,
}


def refuse(rank: Rank, case: PlainCase) -> None:
    """Do it."""
    REFUSED[case.way](sharder(rank), rank)


# What may be refused, but must not go wrong.


class TwoDtypes(nn.Module):
    """A float32 layer, and a float64 one whose weights float32 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = linear(2, 2), linear(2, 2).double()
        with torch.no_grad():
            self.other.weight += 2.0**-40

    def forward(self, x: Tensor) -> Any:
        """The sum of both, also if both have come to one dtype: then the numbers show it."""
        return self.one(x) + self.other(x.to(self.other.weight.dtype))


def transposed() -> nn.Linear:
    """A layer whose weight is not contiguous."""
    layer = linear(3, 2)
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return layer


#: Modules, and the options that they are sharded with; ranks do not divide the three columns.
KEPT_OR_REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "not contiguous": (transposed, {}),
    "uneven columns": (
        lambda: nn.Sequential(linear(3, 2), linear(2, 3)),
        {"shard_placement_fn": lambda parameter: Shard(1)},
    ),
    "two dtypes": (TwoDtypes, {}),
}


def keep_or_refuse(rank: Rank, case: PlainCase) -> dict[str, Any]:
    """Shard such a module and take a pass; either what came of it, or what was raised."""
    make, options = KEPT_OR_REFUSED[case.way]
    try:
        return passed(sharder(rank)(make().to(rank.device), **options), rank.device)
    except Exception as error:
        return {"raised": as_data(error)}


def passed(net: nn.Module, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The parameters of a net, its outputs for ones, and gradients of their sum: all whole."""
    full = [put_together(parameter) for parameter in net.parameters()]
    outputs = net(torch.ones(1, 2, device=device))
    outputs.sum().backward()
    gradients = [put_together(p.grad).contiguous() for p in net.parameters() if p.grad is not None]
    return {"parameters": full, "outputs": outputs.detach().double(), "gradients": gradients}
