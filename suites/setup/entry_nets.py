"""Small nets and programs for what ``fully_shard`` takes and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from harness.data.case import Case
from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase, as_case
from suites.kit.programs import ShardedStack, sharded
from suites.kit.strategies import training_cases, world_sizes
from suites.kit.trees import slice_of
from suites.oracle.layout import even
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
    """Whether a list's modules and a module come back; and then classes, names, and what a slice is."""
    net: Any = case.build()
    before = {name: type(module) for name, module in net.named_modules()}
    asks_for(Feature.MODULE_CLASS)
    kind = rank.implementation.module_class
    listed = [net[place] for place in case.sharded]
    back = sharder(rank)(listed) if listed else []
    returned = {"list": [*map(id, back)] == [*map(id, listed)], "module": sharder(rank)(net) is net}
    modules = dict(net.named_modules())
    return {
        "returned": returned,
        "still what it was": {name: isinstance(module, before.get(name, ())) for name, module in modules.items()},
        "sharded": [name for name, module in modules.items() if isinstance(module, kind)],
        "untouched": [name for name, module in modules.items() if type(module) is before.get(name)],
        "names": names_of(net),
        "slice": {"is sharded": isinstance(net[:-1], kind), **slice_of(net)},
    }


def names_of(net: nn.Module) -> dict[str, list[str]]:
    """The names of parameters, buffers and modules, in their order."""
    kinds = {"parameters": net.named_parameters(), "buffers": net.named_buffers(), "modules": net.named_modules()}
    return {kind: [name for name, _ in named] for kind, named in kinds.items()}


def nested_in_a_list(rank: Rank, case: PlainCase) -> dict[str, bool]:
    """Which modules of a list become sharded ones, where one lies within another; the list may name the inner first.

    That one is a child of the other's child.
    """
    asks_for(Feature.MODULE_CLASS)
    facts, kind = {}, rank.implementation.module_class
    for order in ("outer first", "inner first"):
        outer: Any = nn.Sequential(linear(), nn.Sequential(linear(2, 3)))
        beside = linear(2, 2)
        inner = outer[1] if order == "outer first" else outer[1][0]
        sharder(rank)([outer, inner, beside] if order == "outer first" else [inner, outer, beside])
        found = {"outer": outer, "inner": inner, "beside": beside}
        facts.update({f"{order}: {name}": isinstance(module, kind) for name, module in found.items()})
    return facts


def list_is_kept(rank: Rank, case: PlainCase) -> bool:
    """Whether a list is as it was after it was sharded, of modules of which one lies within another."""
    outer = nn.Sequential(linear(), nn.Sequential(linear(2, 3)))
    given = [outer, outer[1], linear(2, 2)]
    before = list(given)
    sharder(rank)(given)
    return list(map(id, given)) == list(map(id, before))


@dataclass(frozen=True)
class OrderCase(TrainingCase):
    """Training on a mesh that names ranks in this order. Who has which rows then is not said: losses alone are seen."""

    order: tuple[int, ...] = (1, 0)

    def shown(self, place: int) -> tuple[str, ...]:
        """Nothing but what passes give."""
        return ()


@st.composite
def order_cases(draw: st.DrawFn) -> OrderCase:
    """Exact training on two or more ranks, in any order."""
    case = draw(
        training_cases(exact=True, dtype="float64", world_size=draw(world_sizes(2, power_of_two=True)), steps=2)
    )
    order = tuple(draw(st.permutations(range(case.world_size))))
    return as_case(OrderCase, case, order=order)


class Ordered(ShardedStack):
    """A stack that is sharded over such a mesh."""

    def made(self) -> Any:
        """The net."""
        return sharded(self.rank, self.case, self.case.build(), mesh=DeviceMesh(self.rank.device.type, self.case.order))


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


def layer_class(factor: float) -> type[nn.Linear]:
    """A class of layers that multiply; all such classes have one name."""

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return factor * super().forward(x)

    return Layer


def namesakes() -> nn.Sequential:
    """Two layers of ones, of two classes that have one name; the second one's outputs are negative."""
    layers = [layer_class(factor)(2, 2, bias=False) for factor in (1.0, -1.0)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    return nn.Sequential(*layers)


def outputs_of_namesakes(rank: Rank, case: PlainCase) -> Tensor:
    """What they give for ones, each a group of its own."""
    net: Any = namesakes()
    for module in (*net, net):
        sharder(rank)(module)
    return net(torch.ones(1, 2, device=rank.device)).detach()  # type: ignore[no-any-return]


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
