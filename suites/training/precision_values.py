"""What mixed precision leaves alone: buffers, parameters of other dtypes, policies, and functions of modules.

A buffer of float32 is float32, with its values, when a layer of param_dtype bfloat16 runs beside it. On two ranks a
float32 weight of two rows and an int64 table of two are gathered together, each in its own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.precision import PrecisionCase, dtype_of
from suites.kit.precision_programs import LOW, precision_cases
from suites.kit.programs import apply, data_mesh, gradients, loss_of, policy_of, sharded
from suites.kit.strategies import world_sizes
from suites.oracle.expected import expected
from suites.training.noting import Layer, NotingCase

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
BUFFERS = ("float32", "float64", "bfloat16", "float16", "int64", "bool")
FLOATS = ("float8_e4m3fn", "float16", "bfloat16", "float64")


NORMS: dict[str, Callable[..., Tensor]] = {
    "layer": lambda x, *affine: functional.layer_norm(x, x.shape[-1:], *affine),
    "group": lambda x, *affine: functional.group_norm(x, 2, *affine),
}


@dataclass(frozen=True)
class BesideCase(NotingCase):
    """A linear layer and what is beside it in its group, if anything.

    That is a norm, buffers of some dtypes, a frozen table of ``rows`` rows of dtype ``other``, which may be the
    ``first`` parameter, and where ``keeps`` a vector that the policy keeps in its own dtype.
    """

    norm: str = ""
    buffers: tuple[str, ...] = ()
    other: str = ""
    rows: int = 1
    first: bool = False
    keeps: bool = False

    @property
    def policy(self) -> dict[str, Any]:
        """What is asked for; vectors keep their dtype."""
        kept = {"param_dtype_override_fn": lambda p: p.dtype if p.dim() == 1 else None} if self.keeps else {}
        return {**super().policy, **kept}

    def build(self) -> nn.Sequential:
        """The layer, the root's only module."""
        [layer] = PrecisionCase.build(self)
        return nn.Sequential(Beside(layer, self))


#: A table of a dtype that is still to be said, of rows that two ranks do not divide.
TABLE = BesideCase(2, Stack(2, ("linear",)), exact=True, steps=1, batch=2, rows=3)
#: A vector that keeps its dtype, in a policy that is still to be said.
KEPT = BesideCase(2, Stack(2, ("linear",), bias=False), exact=True, steps=1, batch=2, keeps=True)


class Beside(Layer):
    """The layer. What the norm gives is added, and multiplied by the last entry of the table."""

    def __init__(self, layer: Any, case: BesideCase) -> None:
        super().__init__(layer)
        self.case = case
        if case.norm:  # whose output is its bias, exactly
            self.scale = nn.Parameter(torch.zeros(case.net.dim), requires_grad=False)
            self.shift = nn.Parameter(torch.ones(case.net.dim))
        for place, dtype in enumerate(case.buffers):  # not what low precision holds: a cast and a cast back would show
            self.register_buffer(f"buffer_{place}", torch.tensor([1.0 + 2.0**-9, 3.0]).to(dtype_of(dtype)))
        if case.keeps:  # not what low precision holds, and what float32 can sum exactly
            self.vector = nn.Parameter(torch.full((len(layer.weight),), 1.0 + 2.0**-12))
        if case.other:  # 1, 2, 3, 1, 2, …
            numbers = torch.arange(case.rows * 2).reshape(case.rows, 2) % 3 + 1
            self.table = nn.Parameter(numbers.float().to(dtype_of(case.other)), requires_grad=False)
        if case.first:
            for name in [name for name in self._parameters if name != "table"]:
                self.register_parameter(name, self._parameters.pop(name))

    def run(self, x: Tensor) -> Tensor:
        """In the layer's dtype, but for the vector."""
        y = super().run(x)
        if self.case.norm:
            y = y + NORMS[self.case.norm](x, self.scale, self.shift)
        y = y + self.vector if self.case.keeps else y
        return y * self.table[-1, -1].to(y) if self.case.other else y


def beside_cases(dims: Sequence[int], bias: bool = True, **fixed: Any) -> st.SearchStrategy[BesideCase]:
    """One layer, and what is beside it."""
    nets = st.sampled_from([Stack(dim, ("linear",), bias=bias) for dim in dims])
    return precision_cases(BesideCase, net=nets, steps=1, **fixed)


def table_cases(low: bool) -> st.SearchStrategy[BesideCase]:
    """Tables that ranks need not divide, in any dtype; with a low param_dtype, or with no policy."""
    pairs = [(param, "float32") for param in LOW] if low else [(None, None)]
    other = st.sampled_from(INTEGERS if low else (*INTEGERS, *FLOATS))
    return beside_cases((1, 2, 3), pairs=pairs, other=other, rows=st.integers(1, 6), first=st.booleans())


def buffer_cases() -> st.SearchStrategy[BesideCase]:
    """A norm, and buffers of any dtype."""
    buffers = st.lists(st.sampled_from(BUFFERS), min_size=1, max_size=3).map(tuple)
    given: dict[str, Any] = {
        "world_size": world_sizes(power_of_two=True),
        "norm": st.sampled_from(sorted(NORMS)),
        "buffers": buffers,
    }
    return beside_cases((2, 4, 6), pairs=[(param, None) for param in LOW], batch=3, **given)


def kept_cases() -> st.SearchStrategy[BesideCase]:
    """A layer that is computed in low precision, and a vector that is not."""
    pairs = [(param, reduce) for param in LOW for reduce in (None, "float32")]
    return beside_cases((1, 2, 3), bias=False, pairs=pairs, keeps=True)


#: What a policy must not say of a parameter of float32 that is to be computed in bfloat16.
NO_DTYPES = {"another dtype": torch.float64, "no dtype": "float32"}


def overridden(rank: Rank, case: PrecisionCase, answer: Any) -> None:
    """Shard by a policy that says this of every parameter."""
    policy = rank.implementation.mixed_precision_policy(**case.policy, param_dtype_override_fn=lambda _: answer)
    apply(rank, case, case.build(), mp_policy=policy)


#: Policies whose two dtypes may be one and the same.
ALIKE = [(param, reduce) for param in (None, *LOW) for reduce in (param, "float32")]


FIELDS = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")


def policies(rank: Rank, case: PrecisionCase) -> dict[str, list[str]]:
    """The fields of a policy made of nothing, and of the case's before and after training."""
    default, policy = rank.implementation.mixed_precision_policy(), policy_of(rank, case)
    before = fields(policy)
    net = apply(rank, case, case.build(), mp_policy=policy)
    loss_of(rank, case, net).backward()
    return {"default": fields(default), "before": before, "after": fields(policy)}


def fields(policy: Any) -> list[str]:
    """Every field in words."""
    return [str(getattr(policy, name)) for name in FIELDS]


def assign(rank: Rank, case: PrecisionCase) -> None:
    """Change a policy that was made."""
    policy_of(rank, case).reduce_dtype = torch.float64


def transformed(rank: Rank, case: PrecisionCase) -> dict[str, Any]:
    """A sharded net's value and directional derivative, its values over a batch one by one, and gradients of each."""
    net: Any = sharded(rank, case, counting(case.build()))
    batch, direction = case.inputs(0, rank.number).to(rank.device), case.inputs(1, rank.number).to(rank.device)
    found, value = derived(net, batch, direction)
    case.loss(value, 0, rank.number).backward()
    found |= {"gradients of jvp": gradients(net)}
    net.zero_grad()
    mapped, counts = torch.func.vmap(net)(batch)
    case.loss(mapped, 0, rank.number).backward()
    return {**found, "mapped": mapped.detach(), "counts mapped": counts, "gradients of vmap": gradients(net)}


def counting(net: nn.Module) -> nn.Module:
    """A net that also gives the number of dims of its inputs, an integer, which no transform differentiates."""
    net.register_forward_hook(lambda _, args, output: (output, torch.tensor(args[0].dim())))
    return net


def derived(net: nn.Module, batch: Tensor, direction: Tensor) -> tuple[dict[str, Any], Tensor]:
    """What a net's value is, its derivative in a direction, and its count; and the value, which takes gradients."""
    derive: Any = torch.func.jvp
    value, derivative, count = derive(net, (batch,), (direction,), has_aux=True)
    return {"value": value.detach(), "derivative": derivative.detach(), "count": count}, value


def expected_transforms(case: PrecisionCase, number: int) -> dict[str, Any]:
    """What the unsharded net has of this on one rank, in what is computed in; gradients are those of training."""
    net = counting(case.build().to(case.compute))
    batch, direction = (case.inputs(step, number).to(case.compute) for step in (0, 1))
    found, value = derived(net, batch, direction)
    trained = expected(case).trace(number)[0]["gradients"]
    mapped = {"mapped": value.detach(), "counts mapped": torch.full((len(batch),), batch.dim() - 1)}
    return {**found, "gradients of jvp": trained, **mapped, "gradients of vmap": trained}


class Caching(nn.Module):
    """Writes what a net makes of its inputs into memory that it is given."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """``(batch, dim)`` to what memory has then."""
        return memory.copy_(self.net(x))


@torch.no_grad()
def cached(net: nn.Module, case: PrecisionCase, device: torch.device | str = "cpu") -> Tensor:
    """All memory, of which a net was given every other row, in the dtype in which it computes."""
    inputs = case.inputs(0, 0).to(device, case.compute)
    memory = torch.zeros(len(inputs), 2, inputs.shape[-1], device=device, dtype=case.compute)
    net(inputs, memory[:, 1])
    return memory


def cached_on_ranks(rank: Rank, case: PrecisionCase) -> Tensor:
    """The same of a sharded net."""
    net: Any = Caching(case.build().to(rank.device))
    rank.implementation.fully_shard(net, mesh=data_mesh(rank, case), mp_policy=policy_of(rank, case))
    return cached(net, case, rank.device)
