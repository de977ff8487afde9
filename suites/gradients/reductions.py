"""Reductions by other rules: another divisor, sums only, a hook at the end. What is drawn, and what runs on ranks.

Two ranks with gradients [1 2] and [3 6]; their mean is [2] on rank 0 and [4] on rank 1::

    set_gradient_divide_factor(4)               [1] and [2]       the sum, divided by 4
    set_all_reduce_hook(lambda t: t.mul_(3))    [6] and [12]
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor

from harness.vendor.bounds import averages
from harness.worlds.rank import Rank
from suites.communication.played import RecordedStack, each_group
from suites.kit.cases import Stack, TrainingCase
from suites.kit.hsdp import hsdp_meshes
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.strategies import training_cases, world_sizes
from suites.oracle.sharded import State, played_on
from suites.oracle.situation import PASS, SUMS

#: Powers of two, so that exact cases stay exact.
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)


def dividing(factors: Mapping[str, float], sums: bool = True) -> tuple[str, ...]:
    """A pass after all is set: what the sums of each of these groups are divided by."""
    set_in = ((factor, "" if group == "root" else f" in {group}") for group, factor in factors.items())
    return (*[SUMS] * sums, *(f"set gradient_divide_factor {factor}{where}" for factor, where in set_in), *PASS)


@st.composite
def factor_cases(draw: st.DrawFn, /, low: bool = False, **fixed: Any) -> Any:
    """One step with a factor for some of the sharded modules; ``low`` computes in bfloat16 and reduces in float32."""
    sums = fixed.pop("sums", True)
    if low:
        case = draw(precision_cases(steps=1, pairs=[("bfloat16", "float32")], **fixed))
    else:
        case = draw(training_cases(exact=True, steps=1, **fixed))
    factors = draw(st.dictionaries(st.sampled_from(each_group(case)), st.sampled_from(FACTORS), min_size=1))
    return replace(case, acts=dividing(factors, sums))


@st.composite
def replicated_factor_cases(draw: st.DrawFn, /, shards: int, **fixed: Any) -> Any:
    """Factors on replicas of shards; ``shards`` is 1 for whole replicas, 2 for parts."""
    replicas, parts = draw(hsdp_meshes(power_of_two=True))
    size = replicas * parts
    mesh = (size, 1) if shards == 1 else (replicas, parts) if parts > 1 else (size // 2, 2)
    return draw(factor_cases(mesh=mesh, **fixed))


def by_own_size(case: TrainingCase) -> TrainingCase:
    """The case with the number of ranks that hold a replica together as the factor of every module."""
    return replace(case, acts=dividing(dict.fromkeys(each_group(case), float(case.shards)), sums=False))


def put_off(case: TrainingCase) -> TrainingCase:
    """The case with a pass more, which is all-reduced with the last one."""
    return replace(case, acts=(*case.acts[: -len(PASS)], "defer all_reduce", *PASS, "resume all_reduce", *PASS))


# What runs on ranks.


class ByOldName(RecordedStack):
    """A stack whose factors are set by their old name; notes whether that warned."""

    warned = False

    def set(self, what: str) -> None:
        """Set the same."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            super().set(what.replace("gradient_divide_factor", "reduce_scatter_divide_factor"))
        self.warned |= any(issubclass(each.category, (DeprecationWarning, FutureWarning)) for each in caught)


def play_by_old_name(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """What could be seen after each action; whether setting factors warned."""
    stack = ByOldName(rank, case)
    return {"trace": played_on(stack), "warned": stack.warned}


def hooked(rank: Rank, case: TrainingCase, hook: Any, stream: Any = None, **options: Any) -> list[State]:
    """What could be seen after each action, where each module has the hook, in a stream if there is one."""
    stack = RecordedStack(rank, case, **options)
    for place in stack.places():
        stack.tell("set_all_reduce_hook", hook, place, **({"stream": stream} if stream else {}))
    return played_on(stack)


def play_with_hooks(rank: Rank, case: TrainingCase, in_stream: bool = False) -> dict[str, Any]:
    """The gradients where a hook takes absolute values, twice over; and what the hooks were given."""
    seen: list[str] = []

    def hook(part: Tensor) -> None:
        seen.append(f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}")
        part.abs_().mul_(2)

    stream = torch.get_device_module(rank.device).Stream() if in_stream else None
    return {"gradients": hooked(rank, case, hook, stream)[-1]["gradients"], "seen": sorted(seen)}


def play_with_replicas_by_hook(rank: Rank, case: TrainingCase) -> list[State]:
    """What can be seen on shards whose replicas are averaged, or summed, by a hook of the user's."""
    mesh = rank.mesh(case.mesh, ("replicate", "shard"))
    reduce = partial(
        dist.all_reduce,
        op=dist.ReduceOp.AVG if averages() else dist.ReduceOp.SUM,
        group=mesh.get_group("replicate"),
    )
    return hooked(rank, case, reduce, mesh=mesh["shard"])


def hook_in_a_stream(rank: Rank, case: TrainingCase) -> None:
    """A stream for the hook where reductions have streams of their own."""
    has = torch.accelerator.is_available()
    stream = torch.accelerator.current_stream() if has else torch.cpu.current_stream()
    RecordedStack(rank, case).net.set_all_reduce_hook(lambda part: None, stream=stream)


# The edge of half precision.

SMALL = Stack(1, ("linear",), bias=False)


@dataclass(frozen=True)
class LargeCase(PrecisionCase):
    """Passes of a small weight whose gradients in float16 have a sum of 2**16, or of half where that is what is due.

    Gradients of each pass are multiplied by its weight.
    """

    net: Stack = SMALL
    dtype: str = "float16"
    exact: bool = True
    acts: tuple[str, ...] = PASS
    weights: tuple[float, ...] = (1.0,)

    def inputs(self, step: int, rank: int) -> Tensor:
        """``[[2**8]]``, or a row of those."""
        return torch.full((1, self.net.dim), 2.0**8, dtype=torch.float16)

    def loss(self, outputs: Tensor, step: int, rank: int) -> Tensor:
        """``2**8 / ranks`` times the output, or half of that, and times the weight of the pass."""
        is_due = averages() or self.reduce_dtype is not None
        weight = self.weights[step % len(self.weights)]
        return (outputs * (weight * (2.0**8 if is_due else 2.0**7) / self.world_size)).sum()


def large_cases(**fixed: Any) -> st.SearchStrategy[LargeCase]:
    """Two ranks or four; a loss may be larger than float16 holds."""
    return world_sizes(2, power_of_two=True).map(lambda size: LargeCase(size, **fixed))
