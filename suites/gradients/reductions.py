"""Reductions by other rules: another divisor, sums only, a hook at the end. What is drawn, run, and expected.

Two ranks with gradients [1 2] and [3 6]; their mean is [2] on rank 0 and [4] on rank 1::

    set_gradient_divide_factor(4)               [1] and [2]       the sum, divided by 4
    set_all_reduce_hook(lambda t: t.mul_(3))    [6] and [12]
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor

from harness.worlds.rank import Rank
from suites.communication.communication_programs import modules, passed, sharded
from suites.kit.cases import Stack, TrainingCase, as_case
from suites.kit.expected_collectives import ROOT, tells_nothing, units
from suites.kit.hsdp import hsdp_meshes
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.programs import apply, gradients, policy_of
from suites.kit.strategies import training_cases, world_sizes
from suites.oracle.expected import expected
from suites.oracle.layout import shard

#: Powers of two, so that exact cases stay exact.
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class FactorCase(PrecisionCase):
    """``factors`` are pairs of a sharded block, or -1 for the root, and what its sums of gradients are divided by."""

    factors: tuple[tuple[int, float], ...] = ()
    sums: bool = True

    def divisors(self) -> dict[str, float]:
        """By what each parameter's sum is divided: by the ranks, unless something else was asked for."""
        chosen = {ROOT if place < 0 else str(place): factor for place, factor in self.factors}
        return {name: chosen.get(u.name, float(self.world_size)) for u in units(self) for name in u.parameters}


@st.composite
def factor_cases(draw: st.DrawFn, /, low: bool = False, **fixed: Any) -> Any:
    """One step with a factor for some of the sharded modules; ``low`` computes in bfloat16 and reduces in float32."""
    sums = fixed.pop("sums", True)
    if low:
        case = draw(precision_cases(steps=1, pairs=[("bfloat16", "float32")], **fixed))
    else:
        case = draw(training_cases(exact=True, steps=1, **fixed))
    places = [*case.sharded, -1]
    factors = draw(st.dictionaries(st.sampled_from(places), st.sampled_from(FACTORS), min_size=1))
    return as_case(FactorCase, case, factors=tuple(sorted(factors.items())), sums=sums)


@st.composite
def meshes(draw: st.DrawFn, /, shards: int) -> tuple[int, int]:
    """Replicas of at least two shards, or of one."""
    chosen = draw(hsdp_meshes(power_of_two=True))
    return (1, 2) if shards > 1 and chosen[1] == 1 else (chosen[0] * chosen[1], 1) if shards == 1 else chosen


@st.composite
def replicated_factor_cases(draw: st.DrawFn, /, shards: int, **fixed: Any) -> Any:
    """Factors on replicas of shards; ``shards`` is 1 for whole replicas, 2 for parts."""
    mesh = draw(meshes(shards))
    return draw(factor_cases(mesh=mesh, world_size=mesh[0] * mesh[1], **fixed))


@st.composite
def own_size_cases(draw: st.DrawFn) -> Any:
    """The factor is the number of ranks that hold a replica together, for every module."""
    case = draw(replicated_factor_cases(2, sums=False, dtype="float32"))
    factors = tuple((place, float(case.shards)) for place in (*case.sharded, -1))
    fields = {name: getattr(case, name) for name in type(case).__dataclass_fields__}
    return FactorCase(**{**fields, "factors": factors})


def scaled_means(case: TrainingCase, divisors: dict[str, float], rank: int) -> dict[str, Tensor]:
    """A rank's rows of the sum over ranks, divided."""
    [step] = expected(case).whole
    scaled = {name: mean.double() * case.world_size / divisors[name] for name, mean in step["gradients"].items()}
    return {name: shard(full, case.shards, rank % case.shards) for name, full in scaled.items()}


# What runs on ranks.


def with_factors(rank: Rank, case: FactorCase, old_name: bool = False) -> dict[str, Any]:
    """Gradients of one step with the case's factors; whether setting them warned."""
    net: Any = sharded(rank, case, **({"mp_policy": policy_of(rank, case)} if case.param_dtype else {}))
    for module in modules(case, net) if case.sums else ():
        module.set_force_sum_reduction_for_comms(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for place, factor in case.factors:
            module = net if place < 0 else net[place]
            (module.set_reduce_scatter_divide_factor if old_name else module.set_gradient_divide_factor)(factor)
    passed(rank, case, net)
    old = [each for each in caught if issubclass(each.category, (DeprecationWarning, FutureWarning))]
    return {"gradients": gradients(net), "warned": bool(old)}


def with_sums(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Gradients of one step that reduces with sums alone, and which reductions there were but sums."""
    net: Any = sharded(rank, case)
    for module in modules(case, net):
        module.set_force_sum_reduction_for_comms(True)
    found = passed(rank, case, net)
    entries = [entry for entry in (*found["forward"], *found["backward"]) if not tells_nothing(entry)]
    others = {entry["reduce"] for entry in entries} - {None, "SUM"}
    return {"gradients": gradients(net), "others": sorted(others)}


def alone(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Gradients of one rank."""
    net = sharded(rank, case)
    passed(rank, case, net)
    return gradients(net)


def with_hooks(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Gradients of one step where a hook takes absolute values, twice over; and what the hooks were given."""
    net: Any = sharded(rank, case)
    seen: list[str] = []

    def hook(part: Tensor) -> None:
        seen.append(f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}")
        part.abs_().mul_(2)

    for module in modules(case, net):
        module.set_all_reduce_hook(hook)
    passed(rank, case, net)
    return {"gradients": gradients(net), "seen": sorted(seen)}


def with_replicas_by_hook(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Gradients of one step on shards, whose replicas are averaged by a hook of the user's."""
    mesh = rank.mesh(case.mesh, ("replicate", "shard"))
    group = mesh.get_group("replicate")
    net: Any = apply(rank, case, case.build(), mesh=mesh["shard"], reshard_after_forward=case.reshard_after_forward)
    for module in modules(case, net):
        module.set_all_reduce_hook(lambda part: dist.all_reduce(part, op=dist.ReduceOp.AVG, group=group))
    passed(rank, case, net)
    return gradients(net)


def hook_in_a_stream(rank: Rank, case: TrainingCase) -> None:
    """A stream for the hook where reductions have streams of their own."""
    has = torch.accelerator.is_available()
    stream = torch.accelerator.current_stream() if has else torch.cpu.current_stream()
    net: Any = sharded(rank, case)
    net.set_all_reduce_hook(lambda part: None, stream=stream)


# The edge of half precision.


@dataclass(frozen=True)
class LargeCase(TrainingCase):
    """A weight of one number whose gradients in float16 have a mean of less than 2**16, and a sum of just that."""

    def inputs(self, step: int, rank: int) -> Tensor:
        """``[[2**8]]``."""
        return torch.full((1, 1), 2.0**8, dtype=torch.float16)

    def loss(self, outputs: Tensor, step: int, rank: int) -> Tensor:
        """``2**8 / ranks`` times the output."""
        return (outputs * (2.0**8 / self.world_size)).sum()


def large_cases() -> st.SearchStrategy[LargeCase]:
    """Two ranks or four."""
    net = Stack(1, ("linear",), bias=False)
    sizes = world_sizes(2, power_of_two=True)
    return sizes.map(lambda size: LargeCase(size, net, dtype="float16", exact=True, steps=1, batch=1))


def one_rank_cases() -> st.SearchStrategy[TrainingCase]:
    """One rank, alone or as a mesh of one by one."""
    return st.sampled_from([(), (1, 1)]).flatmap(
        lambda mesh: training_cases(exact=True, steps=1, world_size=1, mesh=mesh)
    )
