"""What mixed precision leaves alone: buffers, policies, and functions of modules.

A buffer of float32 is float32, with its values, when a layer of param_dtype bfloat16 runs beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.data.case import Case
from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.precision import PrecisionCase, dtype_of
from suites.kit.precision_programs import LOW, policy_of, precision_cases
from suites.kit.programs import apply, gradients
from suites.kit.strategies import world_sizes


@dataclass(frozen=True)
class BufferCase(Case):
    """A module with a norm and buffers of these dtypes, in a param_dtype; the norm is of so many features."""

    world_size: int
    buffers: tuple[str, ...]
    param_dtype: str
    norm: str = "layer"
    features: int = 4


def buffer_cases() -> st.SearchStrategy[BufferCase]:
    """Buffers of any dtype."""
    dtypes = st.sampled_from(["float32", "float64", "bfloat16", "float16", "int64", "bool"])
    return st.builds(
        BufferCase,
        world_size=world_sizes(),
        buffers=st.lists(dtypes, min_size=1, max_size=3).map(tuple),
        param_dtype=st.sampled_from(LOW),
        norm=st.sampled_from(["layer", "group"]),
        features=st.sampled_from([2, 4, 6]),
    )


class Holding(nn.Module):
    """A norm, and buffers that it notes when it runs."""

    def __init__(self, case: BufferCase) -> None:
        super().__init__()
        self.norm: nn.Module = nn.LayerNorm(case.features)
        if case.norm == "group":
            self.norm = nn.GroupNorm(2, case.features)
        for place, dtype in enumerate(case.buffers):
            # Not what low precision holds: a cast and a cast back would show.
            self.register_buffer(f"buffer_{place}", torch.tensor([1.0 + 2.0**-9, 3.0]).to(dtype_of(dtype)))
        self.seen: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x``."""
        self.seen = {name: buffer.clone() for name, buffer in self.named_buffers()}
        y: Tensor = self.norm(x)
        return y


def buffers_seen(rank: Rank, case: BufferCase) -> dict[str, Any]:
    """The buffers in forward and afterwards, and the dtype of the norm's output."""
    make, fully_shard = rank.implementation.mixed_precision_policy, rank.implementation.fully_shard
    assert make is not None
    assert fully_shard is not None
    module = Holding(case)
    fully_shard(module, mesh=rank.mesh(), mp_policy=make(param_dtype=dtype_of(case.param_dtype)))
    y = module(torch.arange(3.0 * case.features, device=rank.device).reshape(3, -1))
    y.float().sum().backward()
    return {"forward": module.seen, "afterwards": buffers_of(module), "output": str(y.dtype)}


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of each buffer."""
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


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
