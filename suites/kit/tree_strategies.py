"""What Hypothesis draws of trees: sharing that keeps a net runnable, and plans that keep what is shared together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from suites.kit.cases import Stack
from suites.kit.strategies import stacks, world_sizes
from suites.kit.trees import TreeCase, is_closed, share

Pair = tuple[str, str]


@st.composite
def trees(
    draw: st.DrawFn,
    /,
    at_least: int = 1,
    fewest_shared: int = 0,
    fewest_sharded: int = 0,
    fewest_replicated: int | None = None,
    **fixed: Any,
) -> TreeCase:
    """A net, its sharing and its plan; nothing is given to ``replicate`` unless ``fewest_replicated`` is said."""
    net = draw(twins() if fewest_shared else stacks(smallest=2, largest=7))
    shared = draw(sharings(net, fewest_shared))
    free = closed(net, shared)
    if len(free) < fewest_sharded + (fewest_replicated or 0):  # what is shared holds the whole net together
        assert not fewest_shared
        shared, free = (), closed(net, ())
    replicated = () if fewest_replicated is None else draw(apart(free, fewest_replicated))
    free = [name for name in free if not any(related(name, other) for other in replicated)]
    plan = draw(st.sets(st.sampled_from(free), min_size=fewest_sharded, max_size=4)) if free else set()
    world_size = fixed.pop("world_size", None) or draw(world_sizes(at_least))
    return TreeCase(**{
        "world_size": world_size,
        "net": net,
        "shared": shared,
        "plan": tuple(sorted(plan, key=lambda name: (-name.count("."), name))),
        "replicated": replicated,
        "copies": draw(st.sampled_from([n for n in (1, 2) if world_size % n == 0])),
        "seed": draw(st.integers(0, 2**16)),
        **fixed,
    })  # fmt: skip


def twins() -> st.SearchStrategy[Stack]:
    """Nets whose first two blocks are alike, so that they have something to share; half of them have buffers."""
    heads = st.sampled_from(["mlp", "buffer", "nested", "buffer"])
    return st.builds(
        lambda net, head: replace(net, blocks=(head, head, *net.blocks)), stacks(2, smallest=2, largest=7), heads
    )


@st.composite
def sharings(draw: st.DrawFn, net: Stack, fewest: int) -> tuple[Pair, ...]:
    """Up to two pairs of places whose contents are of one kind and shape: modules, parameters or buffers."""
    kinds = [st.sampled_from(pairs) for pairs in shareable(skeleton(net)) if pairs]
    return tuple(draw(st.lists(st.one_of(kinds), min_size=fewest, max_size=2, unique=True))) if kinds else ()


def skeleton(net: Stack, shared: tuple[Pair, ...] = ()) -> nn.Sequential:
    """The net without numbers."""
    with torch.device("meta"):
        built = net.build()
    for place, source in shared:
        share(built, place, source)
    return built


def shareable(net: nn.Module) -> list[list[Pair]]:
    """Pairs of places (later, earlier) that may hold one thing: of parameters, of modules, of buffers."""
    modules = {name: shape_of(module) for name, module in net.named_modules() if name}
    parameters = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    buffers = {name: tuple(buffer.shape) for name, buffer in net.named_buffers()}
    return [pairs_of(parameters), pairs_of(modules), pairs_of(buffers)]


def pairs_of(shapes: dict[str, Any]) -> list[Pair]:
    """Every (later, earlier) pair of names whose shapes are equal."""
    alike: dict[Any, list[str]] = defaultdict(list)
    for name, shape in shapes.items():
        alike[shape].append(name)
    return [(later, earlier) for same in alike.values() for i, earlier in enumerate(same) for later in same[i + 1 :]]


def shape_of(module: nn.Module) -> tuple[Any, ...]:
    """What two modules must have in common to stand in for each other."""
    held = [*module.named_parameters(), *module.named_buffers()]
    return (type(module).__name__, *((name, tuple(tensor.shape)) for name, tensor in held))


def closed(net: Stack, shared: tuple[Pair, ...]) -> list[str]:
    """The modules below the root that can be sharded alone."""
    built = skeleton(net, shared)
    return [name for name, _ in built.named_modules() if name and is_closed(built, name)]


@st.composite
def apart(draw: st.DrawFn, free: list[str], fewest: int) -> tuple[str, ...]:
    """One or two of ``free`` of which none lies within another."""
    first = draw(st.lists(st.sampled_from(free), min_size=fewest, max_size=1)) if free else []
    rest = [name for name in free if not any(related(name, other) for other in first)]
    return (*first, *(draw(st.lists(st.sampled_from(rest), max_size=1)) if rest else []))


def related(one: str, other: str) -> bool:
    """Whether two modules are the same, or one lies within the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
