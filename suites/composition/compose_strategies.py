"""What Hypothesis draws of composed nets: what is applied, where, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from suites.composition.compose import NESTINGS, Call, ComposedCase, Composite, Function, Route, nesting
from suites.kit.cases import Block
from suites.kit.hsdp import hsdp_meshes
from suites.kit.strategies import world_sizes

#: The blocks that every composed net begins with; the last two are the units 1 and 2.
HEAD: tuple[Block, ...] = ("linear", "nested", "nested")
BLOCKS = ("0", "1", "2")
UNITS = BLOCKS[1:]
SMALL = Composite(dim=3, blocks=HEAD, multiplier=1)
#: What the places below the root are called.
PLACES = ("1", "2", "1.0", "2.0", "0")
#: Uneven shards show on three ranks; what functions do to each other does not depend on more.
FEW_RANKS = world_sizes(2).map(lambda size: min(size, 3))
Calls = st.SearchStrategy[tuple[Call, ...]]


def composites(own: bool | None = None, more: bool = True) -> st.SearchStrategy[Composite]:
    """Nets of a Linear, two units and, if there may be more, perhaps another block."""
    return st.builds(
        Composite,
        dim=st.integers(1, 5),
        blocks=st.sampled_from([HEAD, *([(*HEAD, "linear"), (*HEAD, "buffer")] if more else [])]),
        multiplier=st.integers(1, 2),
        bias=st.booleans(),
        own=st.booleans() if own is None else st.just(own),
    )


#: Nets with a parameter of the root's own, and nets of three blocks and nothing else.
ROOTED, THREE = composites(own=True), composites(own=False, more=False)


def composed(calls: Calls, **fixed: Any) -> st.SearchStrategy[ComposedCase]:
    """Some steps of training under drawn calls; ``fixed`` are values of fields, or strategies for them."""
    fields: dict[str, Any] = {
        "world_size": FEW_RANKS,
        "net": composites(),
        "calls": calls,
        "dtype": st.sampled_from(["float64", "float32"]),
        "seed": st.integers(0, 2**16),
        "reshard_after_forward": st.sampled_from([None, True, False]),
        "steps": st.integers(1, 2),
        "batch": st.integers(1, 3),
        **{name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fixed.items()},
    }
    return st.builds(ComposedCase, **fields)


def applying(*calls: Call, **fixed: Any) -> st.SearchStrategy[ComposedCase]:
    """The same under these calls."""
    return composed(st.just(calls), **fixed)


# fully_shard, replicate and checkpoint.


def nestings(by_policy: bool = False) -> st.SearchStrategy[ComposedCase]:
    """Any nesting of any composed net; by policy, those in which policies choose."""
    names = [name for name, calls in NESTINGS.items() if not by_policy or any(call.chosen for call in calls)]
    return composed(st.sampled_from(names).map(lambda name: nesting(name, by_policy)))


def some(
    function: Function, places: Sequence[str], least: int = 1, most: int = 3, chosen: Sequence[str] = ("",)
) -> Calls:
    """One function on some of these places, in any order."""
    call = st.builds(Call, st.just(function), st.sampled_from(places), st.sampled_from(chosen))
    return st.lists(call, min_size=least, max_size=most, unique_by=lambda call: call.place).map(tuple)


@st.composite
def shuffled(draw: st.DrawFn, *parts: Calls, root: Call | None = None) -> tuple[Call, ...]:
    """All these calls in any order; and then perhaps one on the root."""
    calls = draw(st.permutations([call for part in parts for call in draw(part)]))
    return (*calls, *draw(st.sampled_from([(), (root,)] if root else [()])))


def same_module(function: Function = "fully_shard", chosen: Sequence[str] = ("Linear", "")) -> Calls:
    """``checkpoint`` and sharding on one module, in either order; then perhaps sharding of the root."""
    return st.sampled_from(PLACES).flatmap(
        lambda at: shuffled(some(function, [at], chosen=chosen), some("checkpoint", [at]), root=Call(function))
    )


def inside_sharded() -> Calls:
    """``fully_shard`` on both units, ``checkpoint`` on one inside them or both, in any order; then perhaps the root."""
    units = some("fully_shard", UNITS, least=2, chosen=("Linear", ""))
    return shuffled(units, some("checkpoint", ["1.0", "2.0", "2.1"]), root=Call("fully_shard"))


def under_root(root: Function) -> Calls:
    """``checkpoint`` on some modules, of which one may lie in another, and the root, before, between or after them."""
    return shuffled(some("checkpoint", PLACES), some(root, [""]))


def one_of_each(cut: Function, whole: Function) -> Calls:
    """One unit is cut, the other kept whole, and the rest belongs to none."""
    return st.permutations(UNITS).map(lambda units: (Call(cut, units[0]), Call(whole, units[1])))


@st.composite
def siblings(draw: st.DrawFn) -> tuple[Call, ...]:
    """``fully_shard`` and ``replicate`` on all blocks of a net, side by side in any order; nothing on the root."""
    kinds: list[Function] = ["fully_shard", "replicate"]
    kinds.append(draw(st.sampled_from(kinds)))
    return tuple(map(Call, kinds, draw(st.permutations(BLOCKS))))


@st.composite
def strategy_cases(draw: st.DrawFn, policy: str = "") -> ComposedCase:
    """Nets spread by a strategy, with or without a policy of either kind; hybrid ones on meshes of any shape."""
    strategies: list[Function] = ["HYBRID_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
    strategy = draw(st.sampled_from(strategies))
    call = Call(strategy, "", policy or draw(st.sampled_from(["Unit", "Linear", ""])), draw(st.booleans()))
    mesh = draw(hsdp_meshes()) if strategy == "HYBRID_SHARD" else ()
    size = mesh[0] * mesh[1] if mesh else draw(world_sizes(2))
    return draw(applying(call, world_size=size, mesh=mesh))


# Replicas.


def under_one_root(function: Function) -> Calls:
    """One function on some blocks, and then on the root."""
    return some(function, BLOCKS, least=0, most=2).map(lambda calls: (*calls, Call(function)))


def replicas(function: Function, **fixed: Any) -> st.SearchStrategy[ComposedCase]:
    """One function on the root and perhaps on blocks before; or on every block, and none on the root."""
    each = applying(*(Call(function, place) for place in BLOCKS), net=THREE, **fixed)
    return composed(under_one_root(function), net=ROOTED, **fixed) | each


@st.composite
def mixed(draw: st.DrawFn) -> tuple[Call, ...]:
    """``replicate_fsdp`` and ``fully_shard`` on layers of a net, none within another, under a root of either."""
    functions: st.SearchStrategy[Function] = st.sampled_from(["replicate_fsdp", "fully_shard"])
    places = draw(st.permutations(["0", draw(st.sampled_from(["1", "1.0"])), draw(st.sampled_from(["2", "2.1"]))]))
    both = (Call("replicate_fsdp", places[0]), Call("fully_shard", places[1]), Call(draw(functions), places[2]))
    return (*both[: draw(st.integers(2, 3))], Call(draw(functions)))


#: One function within the other within the first.
IN_REPLICAS = (Call("replicate_fsdp", "1.0"), Call("fully_shard", "1"), Call("replicate_fsdp"))
IN_SHARDS = (Call("fully_shard", "1.0"), Call("replicate_fsdp", "1"), Call("fully_shard"))


def routes(*names: Route) -> st.SearchStrategy[ComposedCase]:
    """Replicas that are trained by one of these routes.

    What is tied is replicated together; where modules prefetch, each block is one of its own.
    """
    cases = composed(under_one_root("replicate_fsdp"), net=ROOTED, route=st.sampled_from(names))
    calls_of = {"tied": (), "prefetch": tuple(Call("replicate_fsdp", place) for place in BLOCKS)}
    return cases.map(lambda case: replace(case, calls=(*calls_of.get(case.route, case.calls[:-1]), case.calls[-1])))
