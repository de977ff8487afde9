"""What mixed precision leaves alone: buffers, parameters of other dtypes, policies, and functions of modules.

A buffer of float32 is float32, with its values, when a layer of param_dtype bfloat16 runs beside it. On two ranks a
float32 weight of two rows and an int64 table of two are gathered together, each in its own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.precision import PrecisionCase, dtype_of
from suites.kit.precision_programs import LOW, policy_of, precision_cases
from suites.kit.programs import apply, gradients
from suites.kit.strategies import world_sizes
from suites.training.noting import Layer, Noting, NotingCase

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float8_e4m3fn", "float16", "bfloat16", "float64")


class WithTable(Layer):
    """A linear layer whose output is multiplied by the last entry of a frozen table."""

    def __init__(self, layer: Any, table: Tensor) -> None:
        super().__init__(layer)
        self.table = nn.Parameter(table, requires_grad=False)

    def run(self, x: Tensor) -> Tensor:
        """In the layer's dtype."""
        y = super().run(x)
        return y * self.table[-1, -1].to(y)


class Norm(Noting):
    """A norm, layer norm or group norm, with buffers. It has weights of zero, so its output is its bias: exact."""

    def __init__(self, norm: str, features: int, buffers: Sequence[str]) -> None:
        super().__init__()
        self.norm = norm
        self.weight, self.bias = nn.Parameter(torch.zeros(features)), nn.Parameter(torch.ones(features))
        for place, dtype in enumerate(buffers):
            # Not what low precision holds: a cast and a cast back would show.
            self.register_buffer(f"buffer_{place}", torch.tensor([1.0 + 2.0**-9, 3.0]).to(dtype_of(dtype)))

    def run(self, x: Tensor) -> Tensor:
        """The norm of ``x``."""
        if self.norm == "group":
            return functional.group_norm(x, 2, self.weight, self.bias)
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)


@dataclass(frozen=True)
class TableCase(NotingCase):
    """A linear layer, and a frozen table of ``rows`` rows of dtype ``other`` in the same group."""

    other: str = "int64"
    rows: int = 1

    def build(self) -> nn.Sequential:
        """The layer and the table, which is 1, 2, 3, 1, 2, …"""
        [layer] = PrecisionCase.build(self)
        numbers = torch.arange(self.rows * 2).reshape(self.rows, 2) % 3 + 1
        return nn.Sequential(WithTable(layer, numbers.float().to(dtype_of(self.other))))


@st.composite
def table_cases(draw: st.DrawFn, low: bool) -> TableCase:
    """Tables that ranks need not divide, in any dtype; with a low param_dtype, or with no policy."""
    pairs = [(param, "float32") for param in LOW] if low else [(None, None)]
    others = [*INTEGERS, *(() if low else FLOATS)]
    more: dict[str, Any] = {"other": draw(st.sampled_from(others)), "rows": draw(st.integers(1, 6))}
    net = Stack(draw(st.integers(1, 3)), ("linear",))
    case: TableCase = draw(precision_cases(TableCase, pairs=pairs, net=net, steps=1, **more))
    return case


@dataclass(frozen=True)
class BufferCase(NotingCase):
    """A norm, and buffers of these dtypes."""

    buffers: tuple[str, ...] = ()
    norm: str = "layer"

    @property
    def actions(self) -> tuple[str, ...]:
        """A pass, with what it gives and what has been noted."""
        return ("call", "forward", "backward", "notes")

    def shown(self, place: int) -> tuple[str, ...]:
        """Not gradients, which are not exact."""
        return ("buffers", "dtypes")

    def build(self) -> nn.Sequential:
        """The norm."""
        return nn.Sequential(Norm(self.norm, self.net.dim, self.buffers))


@st.composite
def buffer_cases(draw: st.DrawFn) -> BufferCase:
    """Buffers of any dtype."""
    dtypes = st.sampled_from(["float32", "float64", "bfloat16", "float16", "int64", "bool"])
    pairs = [(low, None) for low in LOW]
    fixed: dict[str, Any] = {
        "net": Stack(draw(st.sampled_from([2, 4, 6])), ("linear",)),
        "sharded": (),
        "world_size": draw(world_sizes(power_of_two=True)),
        "batch": 3,
        "buffers": tuple(draw(st.lists(dtypes, min_size=1, max_size=3))),
        "norm": draw(st.sampled_from(["layer", "group"])),
    }
    case: BufferCase = draw(precision_cases(BufferCase, pairs=pairs, **fixed))
    return case


@st.composite
def alike_cases(draw: st.DrawFn) -> PrecisionCase:
    """Policies whose two dtypes may be one and the same."""
    pairs = [(param, reduce) for param in (None, *LOW) for reduce in (param, "float32")]
    case: PrecisionCase = draw(precision_cases(pairs=pairs, net=Stack(2, ("linear",)), steps=1))
    return case


FIELDS = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")


def policies(rank: Rank, case: PrecisionCase) -> dict[str, list[str]]:
    """The fields of a policy made of nothing, and of the case's before and after training."""
    make, policy = rank.implementation.mixed_precision_policy, policy_of(rank, case)
    assert make is not None
    before = fields(policy)
    net = apply(rank, case, case.build(), mp_policy=policy)
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    return {"default": fields(make()), "before": before, "after": fields(policy)}


def fields(policy: Any) -> list[str]:
    """Every field in words."""
    return [str(getattr(policy, name)) for name in FIELDS]


def assign(rank: Rank, case: PrecisionCase) -> None:
    """Change a policy that was made."""
    policy_of(rank, case).reduce_dtype = torch.float64


def transformed(rank: Rank, case: PrecisionCase) -> dict[str, Any]:
    """A sharded net's value and directional derivative, its values over a batch one by one, and gradients of each."""
    net: Any = apply(rank, case, case.build(), mp_policy=policy_of(rank, case))
    batch, direction = case.inputs(0, rank.number).to(rank.device), case.inputs(1, rank.number).to(rank.device)
    value, derivative = derive(net, batch, direction)
    case.loss(value, 0, rank.number).backward()
    found = {"value": value.detach(), "derivative": derivative.detach(), "gradients of jvp": gradients(net)}
    net.zero_grad()
    mapped = torch.func.vmap(net)(batch)
    case.loss(mapped, 0, rank.number).backward()
    return {**found, "mapped": mapped.detach(), "gradients of vmap": gradients(net)}


def derive(net: nn.Module, batch: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """A net's value, and its derivative in a direction."""
    found: Any = torch.func.jvp(net, (batch,), (direction,))
    value, derivative = found
    return value, derivative


def expected_transforms(case: PrecisionCase, number: int) -> dict[str, Tensor]:
    """The unsharded net's value and directional derivative on one rank, in what is computed in."""
    net = case.build().to(case.compute)
    batch, direction = (case.inputs(step, number).to(case.compute) for step in (0, 1))
    value, derivative = derive(net, batch, direction)
    return {"value": value.detach(), "derivative": derivative.detach(), "mapped": value.detach()}
