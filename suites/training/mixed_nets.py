"""A net with a frozen parameter of another dtype in the same group as trainable ones.

On two ranks a float32 weight of two rows and an int64 table of two are gathered together, each in its own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.precision import PrecisionCase, dtype_of
from suites.kit.precision_programs import LOW, precision_cases
from suites.kit.programs import apply, gradients
from suites.oracle.layout import local, shard

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float8_e4m3fn", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class TableCase(PrecisionCase):
    """A linear layer, and a frozen table of ``rows`` rows of dtype ``other``."""

    other: str = "int64"
    rows: int = 1

    def table(self) -> Tensor:
        """The full table: 1, 2, 3, 1, 2, …"""
        numbers = torch.arange(self.rows * 2).reshape(self.rows, 2) % 3 + 1
        found = dtype_of(self.other)
        assert found is not None
        return numbers.to(torch.float32).to(found)


@st.composite
def table_cases(draw: st.DrawFn, low: bool) -> TableCase:
    """Tables that ranks need not divide, in any dtype; with a low param_dtype, or with no policy."""
    pairs = [(param, "float32") for param in LOW] if low else [(None, None)]
    net = Stack(draw(st.integers(1, 3)), ("linear",))
    other = draw(st.sampled_from([*INTEGERS, *(each for each in FLOATS if not low)]))
    more: dict[str, Any] = {"other": other, "rows": draw(st.integers(1, 6))}
    case: TableCase = draw(precision_cases(TableCase, pairs=pairs, net=net, steps=1, **more))
    return case


class WithTable(nn.Module):
    """A linear layer whose output is multiplied by the table's last entry."""

    def __init__(self, layer: nn.Linear, table: Tensor) -> None:
        super().__init__()
        self.layer, self.table = layer, nn.Parameter(table, requires_grad=False)
        self.seen: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Note what is registered, and run."""
        self.seen = {name: local(parameter) for name, parameter in self.named_parameters()}
        y: Tensor = self.layer(x) * self.table[-1, -1].to(x.dtype)
        return y


def seen_with_table(rank: Rank, case: TableCase) -> dict[str, Any]:
    """What is registered in forward, this rank's part of the table afterwards, and the gradients."""
    options = {"mp_policy": policy} if (policy := policy_if_any(rank, case)) else {}
    net: Any = apply(rank, case, built(case), **options)
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    return {"seen": net[0].seen, "table": local(net[0].table), "gradients": gradients(net)}


def policy_if_any(rank: Rank, case: TableCase) -> Any:
    """The case's policy; None if it asks for nothing."""
    make = rank.implementation.mixed_precision_policy
    if case.param_dtype is None:
        return None
    assert make is not None
    return make(param_dtype=dtype_of(case.param_dtype), reduce_dtype=dtype_of(case.reduce_dtype))


def built(case: TableCase) -> nn.Sequential:
    """The net, with everything frozen in the dtype of its own."""
    [layer] = case.build()
    assert isinstance(layer, nn.Linear)
    return nn.Sequential(WithTable(layer, case.table()))


def on_rank(case: TableCase, number: int) -> dict[str, Any]:
    """What one rank must see: full parameters as they are gathered, and its rows of the table and of mean gradients."""
    net = built(case)
    low = {name: cast(p, case) for name, p in net[0].named_parameters()}
    for name, parameter in net[0].named_parameters():
        parameter.data = low[name].clone()
    for rank in range(case.world_size):
        case.loss(net(case.inputs(0, rank).to(case.compute)), 0, rank).backward()
    means = {
        n: None if p.grad is None else p.grad.to(case.torch_dtype) / case.world_size for n, p in net.named_parameters()
    }
    return {
        "seen": low,
        "table": shard(case.table(), case.world_size, number),
        "gradients": {n: None if mean is None else shard(mean, case.world_size, number) for n, mean in means.items()},
    }


def cast(parameter: Tensor, case: TableCase) -> Tensor:
    """A parameter as it is gathered: floating ones in the param_dtype, if there is one."""
    is_cast = case.param_dtype and parameter.is_floating_point()
    return parameter.detach().to(case.compute) if is_cast else parameter.detach()
