"""Replicas: whole parameters on every rank, with gradients averaged over ranks; what is drawn, and what runs on ranks.

Two ranks with gradients 1 and 3 both end with (1 + 3) / 2 = 2; while gradients are not to be synchronised, a rank
holds its own, 1 or 3, or shows none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.data.case import Case
from harness.worlds.rank import Rank
from suites.composition.compose import Act, ComposedCase, Composite, Function
from suites.composition.compose_programs import composed
from suites.composition.compose_strategies import HEAD, Acts, composites, drawn
from suites.kit.cases import Stack, TrainingCase
from suites.kit.programs import gradients, steps
from suites.kit.strategies import training_cases, world_sizes
from suites.oracle.situation import Trace

Route = Literal["", "halves", "tied", "cast", "method", "prefetch"]


@dataclass(frozen=True)
class RouteCase(ComposedCase):
    """Training by a route that changes no result.

    ``halves`` runs forward twice, on a part of the batch each, before backward; ``tied`` is a net whose units share a
    weight; ``cast`` builds in float64 and casts once replicated; ``method`` runs forward by another method;
    ``prefetch`` tells each module which one comes next.
    """

    route: Route = ""

    def build(self) -> nn.Sequential:
        """The net; where it is tied, the second unit has the first one's weight."""
        net = super().build()
        if self.route == "tied":
            last: Any = net.get_submodule("2.1")
            last.weight = net.get_submodule("1.1").weight
        return net


@dataclass(frozen=True)
class ContainerCase(Case):
    """A container of modules that cannot be called."""

    world_size: int
    container: Literal["ModuleList", "ModuleDict"]


BLOCKS = tuple(str(place) for place in range(len(HEAD)))
#: Nets of three blocks, so that what is applied to each leaves nothing out.
THREE = st.builds(Composite, dim=st.integers(1, 4), blocks=st.just(HEAD), multiplier=st.just(1), bias=st.booleans())
ROOTED = composites(own=st.just(True))


@st.composite
def under_one_root(draw: st.DrawFn, function: Function) -> tuple[Act, ...]:
    """One function on some blocks, and then on the root."""
    some = draw(st.lists(st.sampled_from(BLOCKS), unique=True, max_size=2))
    return (*(Act(function, place) for place in some), Act(function))


def on_each_block(function: Function) -> Acts:
    """One function on every block, and none on the root."""
    return st.just(tuple(Act(function, place) for place in BLOCKS))


@st.composite
def mixed(draw: st.DrawFn) -> tuple[Act, ...]:
    """``replicate_fsdp`` and ``fully_shard`` on layers of a net, none within another, under a root of either."""
    functions: st.SearchStrategy[Function] = st.sampled_from(["replicate_fsdp", "fully_shard"])
    places = draw(st.permutations(["0", draw(st.sampled_from(["1", "1.0"])), draw(st.sampled_from(["2", "2.1"]))]))
    both = (Act("replicate_fsdp", places[0]), Act("fully_shard", places[1]), Act(draw(functions), places[2]))
    return (*both[: draw(st.integers(2, 3))], Act(draw(functions)))


def alternating() -> Acts:
    """One function within the other within the first."""
    kinds: list[tuple[Function, Function]] = [("replicate_fsdp", "fully_shard"), ("fully_shard", "replicate_fsdp")]
    return st.sampled_from([(Act(outer, "1.0"), Act(inner, "1"), Act(outer)) for outer, inner in kinds])


def replicas(acts: Acts, **fixed: Any) -> st.SearchStrategy[RouteCase]:
    """Some steps of training under these calls."""
    return st.builds(RouteCase, **drawn({"net": THREE, "acts": acts, **fixed}))


def routes(*names: Route) -> st.SearchStrategy[RouteCase]:
    """Replicas that are trained by one of these routes.

    What is tied is replicated together; where modules prefetch, each block is one of its own.
    """
    rows, acts = st.integers(2, 3), under_one_root("replicate_fsdp")
    cases = replicas(acts, net=ROOTED, route=st.sampled_from(names), batch=rows)
    each = tuple(Act("replicate_fsdp", place) for place in BLOCKS)
    acts_of = {"tied": (), "prefetch": each}
    return cases.map(lambda case: replace(case, acts=(*acts_of.get(case.route, case.acts[:-1]), case.acts[-1])))


def low_precision_cases() -> st.SearchStrategy[TrainingCase]:
    """One Linear on integers so small that their sums are exact in eight bits."""
    nets = st.builds(Stack, dim=st.integers(1, 3), blocks=st.just(("linear",)), bias=st.booleans())
    return nets.flatmap(lambda net: training_cases(exact=True, net=net, dtype="float32", steps=1))


def container_cases() -> st.SearchStrategy[ContainerCase]:
    """Either container."""
    return st.builds(ContainerCase, world_size=world_sizes(), container=st.sampled_from(["ModuleList", "ModuleDict"]))


def train_by_route(rank: Rank, case: RouteCase) -> Trace:
    """Replicate, then train by the case's route."""
    net: Any = composed(rank, replace(case, dtype="float64") if case.route == "cast" else case)
    if case.route == "cast":
        net.to(case.torch_dtype)
    if case.route == "prefetch":
        for one, following in zip(modules := [net, *blocks_of(net, case)], modules[1:], strict=False):
            one.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([one])
    if case.route == "method":
        assert rank.implementation.register_forward_method is not None
        rank.implementation.register_forward_method(net, "run")
        return steps(rank, case, net, net.run)
    return steps(rank, case, net, (lambda x: in_halves(net, x)) if case.route == "halves" else None)


def blocks_of(net: nn.Module, case: ComposedCase) -> list[nn.Module]:
    """The modules below the root to which something was applied, in the order in which they run."""
    return [net.get_submodule(place) for place in sorted(act.place for act in case.acts if act.place)]


def in_halves(net: nn.Module, x: Tensor) -> Tensor:
    """What the net makes of the first row, and then of the others."""
    return torch.cat([net(x[:1]), net(x[1:])])


def accumulated(rank: Rank, case: RouteCase) -> dict[str, Any]:
    """Gradients after the first row, not synchronised, and after the others, synchronised; and the plain net's first.

    All of one parameter's are by its name; there may be none before gradients are synchronised.
    """
    net, plain = composed(rank, case), case.build().to(rank.device)
    replicated: list[Any] = [net.get_submodule(act.place) for act in case.acts]
    for module in replicated:
        module.set_requires_gradient_sync(False)
    next(losses(rank, case, plain)).backward()
    parts = losses(rank, case, net)
    next(parts).backward()
    held = gradients(net)
    for module in replicated:
        module.set_requires_gradient_sync(True)
    next(parts).backward()
    return {"own": gradients(plain), "held": held, "gradients": gradients(net)}


def losses(rank: Rank, case: RouteCase, net: nn.Module) -> Iterator[Tensor]:
    """The loss of the first row of the batch, and then of the others: together that of the batch."""
    batch = case.inputs(0, rank.number).to(rank.device)
    weights = case.numbers(tuple(batch.shape), 2, 0, rank.number).to(rank.device)
    for rows in (slice(0, 1), slice(1, None)):
        yield (net(batch[rows]) * weights[rows]).sum()
