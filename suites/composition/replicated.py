"""Replicas: whole parameters on every rank, with gradients averaged over ranks; what is drawn, and what runs on ranks.

Two ranks with gradients 1 and 3 both end with (1 + 3) / 2 = 2; while gradients are not to be synchronised, a rank
holds its own, 1 or 3, or shows none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from torch import nn

from harness.worlds.rank import Rank
from suites.composition.compose import Act, ComposedCase, Composite, Function, Route
from suites.composition.compose_programs import applied
from suites.composition.compose_strategies import HEAD, Acts, composed, composites
from suites.kit.cases import Stack, TrainingCase
from suites.kit.programs import gradients, loss_of
from suites.kit.strategies import training_cases

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


def replicas(acts: Acts, **fixed: Any) -> st.SearchStrategy[ComposedCase]:
    """Some steps of training under these calls, which leave nothing out."""
    return composed(acts, **{"net": THREE, "same_inputs": False, **fixed})


def accumulating(function: Function) -> st.SearchStrategy[ComposedCase]:
    """Replicas under one root or apart, one batch of which is not reduced before another."""
    cases = replicas(under_one_root(function), net=ROOTED) | replicas(on_each_block(function))
    return cases.map(lambda case: replace(case, steps=1, route="accumulated"))


def routes(*names: Route) -> st.SearchStrategy[ComposedCase]:
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


def accumulated(rank: Rank, case: ComposedCase) -> dict[str, Any]:
    """Gradients after a batch that is not synchronised, ``held``, and after one that is; and the plain net's ``own``.

    All of one parameter's are by its name; there may be none before gradients are synchronised.
    """
    net, plain = applied(rank, case), case.build().to(rank.device)
    loss_of(rank, case, plain).backward()
    found = []
    for step, synchronised in enumerate((False, True)):
        synchronise(net, case, synchronised)
        loss_of(rank, case, net, step).backward()
        found.append(gradients(net))
    return {"own": gradients(plain), "held": found[0], "gradients": found[1]}


def synchronise(net: nn.Module, case: ComposedCase, synchronised: bool) -> None:
    """Say of everything that is replicated whether its gradients are synchronised."""
    for act in case.acts:
        replicated: Any = net.get_submodule(act.place)
        replicated.set_requires_gradient_sync(synchronised)
