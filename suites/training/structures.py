"""Values within values: lists, tuples, sets, dicts, dataclasses and named tuples of tensors, as modules are given them.

``("tuple", ("tensor", "float32"), ("dict", ("tensor", "int64")))`` stands for ``(tensor, {"0": tensor})``; with
param_dtype bfloat16 a module must be given the same with the first tensor in bfloat16.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suites.kit.cases import Stack
from suites.kit.precision import PrecisionCase, dtype_of
from suites.kit.precision_programs import LOW, precision_cases
from suites.kit.strategies import world_sizes
from suites.oracle.low_precision import cast, compute_in
from suites.oracle.situation import tensors_in
from suites.passes.containers import MAKE, NamedPair
from suites.training.noting import Noting, NotingCase, described

#: ``("tensor", dtype)``, the same for a ``"parameter"`` of the user's own or a ``"number"``, which has no dims;
#: ``("text", what)`` or ``(kind, *structures)``.
Structure = tuple[Any, ...]

ONE_LAYER = Stack(2, ("linear",))
FLOATS = ("float32", "float64", "bfloat16", "float16")
OTHERS = ("int64", "int32", "uint8", "bool", "complex64")
LEAVES = (
    st.tuples(st.sampled_from(("tensor", "number")), st.sampled_from([*FLOATS, *OTHERS]))
    | st.tuples(st.just("parameter"), st.sampled_from(FLOATS))
    | st.just(("text", "a"))
)


@dataclass
class Output(OrderedDict[str, Any]):
    """Two fields that are its items too, as in what models of Hugging Face return."""

    left: Any = None
    right: Any = None

    def __post_init__(self) -> None:
        """Take the fields for items."""
        self.update(left=self.left, right=self.right)


@dataclass
class Halfway:
    """Two fields, of which the constructor takes one."""

    left: Any
    right: Any = field(init=False, default=None)

    @classmethod
    def of(cls, left: Any, right: Any) -> Halfway:
        """One with both."""
        made = cls(left)
        made.right = right
        return made


class Derived(NamedPair):
    """A class derived from that of a named tuple, as a packed sequence's is."""


#: Every kind of value that has values in it.
KINDS: dict[str, Callable[[list[Any]], Any]] = {
    **MAKE,
    "set": set,
    "default dict": lambda items: defaultdict(list, MAKE["dict"](items)),
    "output": lambda items: Output(*items),
    "derived": lambda items: Derived(*items),
    "halfway": lambda items: Halfway.of(*items),
}


class Taking(Noting):
    """Hands back the first of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def run(self, *positional: Any, **named: Any) -> Any:
        """The first positional value."""
        return positional[0]


class Handing(nn.Sequential):
    """Makes what it hands to its module: how a root moves its own inputs to a device is another matter.

    It hands it over twice, the second time with other numbers in the same tensors.
    """

    def forward(self, made: Callable[[], tuple[Any, Any]]) -> Any:
        """What the module gives; that is ``left``, with what it was handed, as it then is."""
        positional, named = made()
        self[0](*positional, **named)
        for tensor in tensors_in([positional, named]):
            tensor.logical_not_()
        found = self[0](*positional, **named)
        self.left = described([found, *positional, named])
        return found


@dataclass(frozen=True)
class StructureCase(NotingCase):
    """A module below the root that is given ``positional`` and ``named`` structures, and hands the first back."""

    sharded: tuple[int, ...] = (0,)
    positional: tuple[Structure, ...] = ()
    named: tuple[Structure, ...] = ()
    output_dtype: str | None = None
    cast: bool = True
    #: Whether a hook that the module had before it was sharded has its outputs in float64.
    widened: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        """A forward, and what was noted in it."""
        return ("look", "notes")

    @property
    def policy(self) -> dict[str, Any]:
        """With the dtype of outputs, and whether inputs are cast."""
        output = {"output_dtype": dtype_of(self.output_dtype)} if self.output_dtype else {}
        return {**super().policy, **output, "cast_forward_inputs": self.cast}

    def build(self) -> Any:
        """The module, in a root."""
        module = Taking()
        if self.widened:
            module.register_forward_hook(lambda *found: cast(found[-1], torch.float64))
        return Handing(module)

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """Both cast, on the unsharded net."""
        compute_in(self.policy, net, ["0", ""])
        return net

    def called(self, net: Any, batch: int, rank: int, device: torch.device | str) -> Any:
        """What it hands back, and what has become of what it was handed."""
        return net(self.made), net.left

    def made(self) -> tuple[list[Any], dict[str, Any]]:
        """What it is given."""
        return [*map(make, self.positional)], {str(place): make(each) for place, each in enumerate(self.named)}


def structures() -> st.SearchStrategy[Structure]:
    """Structures up to some levels deep."""
    return st.recursive(LEAVES, containers, max_leaves=5)


def containers(inside: st.SearchStrategy[Structure]) -> st.SearchStrategy[Structure]:
    """Structures of one level more."""
    several = ["list", "tuple", "dict", "ordered dict", "default dict"]
    any_number = st.tuples(st.sampled_from(several), st.lists(inside, max_size=2))
    kinds = st.sampled_from(["dataclass", "slots", "namedtuple", "derived", "result", "output"])
    pairs = st.tuples(kinds, st.lists(inside, min_size=2, max_size=2))
    sets = st.tuples(st.just("set"), st.lists(LEAVES, max_size=2))
    return (any_number | pairs | sets).map(lambda drawn: (drawn[0], *drawn[1]))


def structure_cases(**fixed: Any) -> st.SearchStrategy[StructureCase]:
    """One or two structures by place, up to one by name, and a policy."""
    return precision_cases(
        StructureCase,
        pairs=[(low, None) for low in LOW],
        net=ONE_LAYER,
        sharded=(0,),
        world_size=world_sizes(),
        positional=st.lists(structures(), min_size=1, max_size=2).map(tuple),
        named=st.lists(structures(), max_size=1).map(tuple),
        **fixed,
    )


def make(structure: Structure) -> Any:
    """The value that a structure stands for; every tensor holds 1 and 0, or i and 0; one without dims the first."""
    kind, *rest = structure
    if kind in ("tensor", "number", "parameter"):
        pair = torch.tensor([1j if rest[0] == "complex64" else 1, 0]).to(dtype_of(rest[0]))
        if kind == "parameter":
            return nn.Parameter(pair, requires_grad=False)
        return pair if kind == "tensor" else pair[0].clone()
    return rest[0] if kind == "text" else KINDS[kind]([make(each) for each in rest])


# Structures between modules that train.


class Carrier(nn.Module):
    """A linear layer whose input and output lie in a structure."""

    def __init__(self, layer: nn.Module, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = layer, kind

    def forward(self, value: Any) -> Any:
        """Take the one floating tensor out, run, and put the result in."""
        y = self.layer(*tensors_in(value))
        inner = MAKE[self.kind]([torch.zeros(1, dtype=torch.int64), y])
        return MAKE[self.kind](["label", inner])


@dataclass(frozen=True)
class CarriedCase(PrecisionCase):
    """Training of linear layers with structures of one kind between them."""

    kind: str = "dataclass"

    def build(self) -> nn.Sequential:
        """The net's layers, each a carrier."""
        return nn.Sequential(*(Carrier(layer, self.kind) for layer in super().build()))

    def loss(self, outputs: Any, step: int, rank: int) -> Tensor:
        """The loss of what the structure holds."""
        return super().loss(tensors_in(outputs)[0], step, rank)
