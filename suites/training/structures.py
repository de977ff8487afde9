"""Values within values: lists, tuples, dicts, dataclasses and named tuples of tensors, as modules are given them.

``("tuple", ("tensor", "float32"), ("dict", ("tensor", "int64")))`` stands for ``(tensor, {"0": tensor})``; with
param_dtype bfloat16 a module must be given the same with the first tensor in bfloat16.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.data.case import Case
from harness.worlds.rank import Rank
from suites.kit.precision import PrecisionCase, dtype_of
from suites.kit.strategies import world_sizes

#: What a structure is made of: ``("tensor", dtype)``, ``("text", what)`` or ``(kind, *structures)``.
Structure = tuple[Any, ...]

FLOATS = ("float32", "float64", "bfloat16", "float16")
OTHERS = ("int64", "int32", "uint8", "bool")


@dataclass
class Pair:
    """Two values."""

    left: Any
    right: Any


class NamedPair(NamedTuple):
    """Two values, as a tuple."""

    left: Any
    right: Any


MAKE: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda items: {str(place): item for place, item in enumerate(items)},
    "ordered dict": lambda items: OrderedDict((str(place), item) for place, item in enumerate(items)),
    "dataclass": lambda items: Pair(*items),
    "namedtuple": lambda items: NamedPair(*items),
}


@dataclass(frozen=True)
class StructureCase(Case):
    """A module that is given ``positional`` and ``named`` structures, and hands the first back."""

    world_size: int
    positional: tuple[Structure, ...]
    named: tuple[Structure, ...]
    param_dtype: str | None = None
    output_dtype: str | None = None
    cast: bool = True


def structures() -> st.SearchStrategy[Structure]:
    """Structures up to some levels deep."""
    leaf = st.tuples(st.just("tensor"), st.sampled_from([*FLOATS, *OTHERS])) | st.just(("text", "a"))
    return st.recursive(leaf, containers, max_leaves=5)


def containers(inside: st.SearchStrategy[Structure]) -> st.SearchStrategy[Structure]:
    """Structures of one level more."""
    any_number = st.tuples(st.sampled_from(["list", "tuple", "dict", "ordered dict"]), st.lists(inside, max_size=2))
    pairs = st.tuples(st.sampled_from(["dataclass", "namedtuple"]), st.lists(inside, min_size=2, max_size=2))
    return (any_number | pairs).map(lambda drawn: (drawn[0], *drawn[1]))


@st.composite
def structure_cases(draw: st.DrawFn, /, **fixed: Any) -> StructureCase:
    """One or two structures by place, up to one by name, and a policy."""
    return StructureCase(**{
        "world_size": draw(world_sizes()),
        "positional": tuple(draw(st.lists(structures(), min_size=1, max_size=2))),
        "named": tuple(draw(st.lists(structures(), max_size=1))),
        "param_dtype": draw(st.sampled_from(["bfloat16", "float16"])),
        **fixed,
    })  # fmt: skip


def make(structure: Structure) -> Any:
    """The value that a structure stands for; every tensor holds 1 and 0."""
    kind, *rest = structure
    if kind == "tensor":
        return torch.tensor([1, 0]).to(dtype_of(rest[0]))
    return rest[0] if kind == "text" else MAKE[kind]([make(each) for each in rest])


def described(value: Any) -> Any:
    """A value as plain data: its type, and what is in it."""
    if isinstance(value, Tensor):
        return {"tensor": str(value.dtype), "values": value.detach().double()}
    if is_dataclass(value) and not isinstance(value, type):
        value = {"dataclass": type(value).__name__, **{f.name: getattr(value, f.name) for f in fields(value)}}
    if isinstance(value, dict):
        return {"type": type(value).__name__, **{key: described(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(described(item) for item in value)]
    return value


def recast(structure: Structure, dtype: str | None) -> Structure:
    """The structure with its floating tensors in ``dtype``."""
    kind, *rest = structure
    if kind == "tensor":
        return ("tensor", dtype if dtype and rest[0] in FLOATS else rest[0])
    return structure if kind == "text" else (kind, *(recast(each, dtype) for each in rest))


class Taking(nn.Module):
    """Notes what it is given, and hands the first of it back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.seen: Any = None

    def forward(self, *positional: Any, **named: Any) -> Any:
        """The first positional value."""
        self.seen = described([*positional, named])
        return positional[0]


def given_and_returned(rank: Rank, case: StructureCase) -> dict[str, Any]:
    """What a sharded module was given, and what came back to its caller."""
    implementation = rank.implementation
    assert implementation.fully_shard is not None
    assert implementation.mixed_precision_policy is not None
    policy = implementation.mixed_precision_policy(
        param_dtype=dtype_of(case.param_dtype),
        output_dtype=dtype_of(case.output_dtype),
        cast_forward_inputs=case.cast,
    )
    module: Any = implementation.fully_shard(Taking(), mesh=rank.mesh(), mp_policy=policy)
    named = {str(place): make(each) for place, each in enumerate(case.named)}
    returned = module(*(make(each) for each in case.positional), **named)
    return {"given": module.seen, "returned": described(returned)}


def passed_on(case: StructureCase) -> dict[str, Any]:
    """What it must be given, and what must come back."""
    dtype = case.param_dtype if case.cast else None
    positional = [recast(each, dtype) for each in case.positional]
    named = {str(place): make(recast(each, dtype)) for place, each in enumerate(case.named)}
    returned = recast(positional[0], case.output_dtype)
    return {"given": described([*map(make, positional), named]), "returned": described(make(returned))}


# Structures between modules that train.


class Carrier(nn.Module):
    """A linear layer whose input and output lie in a structure."""

    def __init__(self, layer: nn.Module, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = layer, kind

    def forward(self, value: Any) -> Any:
        """Take the tensor out, run, and put the result in."""
        y = self.layer(unwrapped(value))
        inner = MAKE[self.kind]([torch.zeros(1, dtype=torch.int64), y])
        return MAKE[self.kind](["label", inner])


def unwrapped(value: Any) -> Tensor:
    """The one tensor of a value that can have a gradient."""
    while not isinstance(value, Tensor):
        if isinstance(value, Pair):
            value = value.right
        else:
            value = list(value.values())[-1] if isinstance(value, dict) else value[-1]
    return value


@dataclass(frozen=True)
class CarriedCase(PrecisionCase):
    """Training of linear layers with structures of one kind between them."""

    kind: str = "dataclass"

    def build(self) -> nn.Sequential:
        """The net's layers, each a carrier."""
        return nn.Sequential(*(Carrier(layer, self.kind) for layer in super().build()))

    def loss(self, outputs: Any, step: int, rank: int) -> Tensor:
        """The loss of what the structure holds."""
        return super().loss(unwrapped(outputs), step, rank)
