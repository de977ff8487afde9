"""What Hypothesis draws of composed nets: what is applied, where, in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from suites.composition.compose import NESTINGS, Act, ComposedCase, Composite, Function, nesting
from suites.kit.cases import Block
from suites.kit.hsdp import hsdp_meshes
from suites.kit.strategies import world_sizes

#: The blocks that every composed net begins with; the last two are the units 1 and 2.
HEAD: tuple[Block, ...] = ("linear", "nested", "nested")
SMALL = Composite(dim=3, blocks=HEAD, multiplier=1)
UNITS = ("1", "2")
#: What the places below the root are called.
PLACES = ("1", "2", "1.0", "2.0", "0")
#: Uneven shards show on three ranks; what functions do to each other does not depend on more.
FEW_RANKS = world_sizes(2).map(lambda size: min(size, 3))
Acts = st.SearchStrategy[tuple[Act, ...]]


def composites(own: st.SearchStrategy[bool] | None = None) -> st.SearchStrategy[Composite]:
    """Nets of a Linear, two units and perhaps another block."""
    rest: st.SearchStrategy[tuple[Block, ...]] = st.sampled_from([(), ("linear",), ("buffer",)])
    return st.builds(
        Composite,
        dim=st.integers(1, 5),
        blocks=rest.map(lambda blocks: (*HEAD, *blocks)),
        multiplier=st.integers(1, 2),
        bias=st.booleans(),
        own=st.booleans() if own is None else own,
    )


def composed(acts: Acts, **fixed: Any) -> st.SearchStrategy[ComposedCase]:
    """Some steps of training under drawn calls; what no call takes care of is trained on the same inputs.

    ``fixed`` are values of fields, or strategies for them.
    """
    fields: dict[str, Any] = {
        "world_size": FEW_RANKS,
        "net": composites(),
        "acts": acts,
        "dtype": st.sampled_from(["float64", "float32"]),
        "seed": st.integers(0, 2**16),
        "reshard_after_forward": st.sampled_from([None, True, False]),
        "steps": st.integers(1, 2),
        "batch": st.integers(1, 3),
        **{name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fixed.items()},
    }
    cases = st.builds(ComposedCase, **fields)
    if "same_inputs" in fixed:
        return cases
    return cases.map(lambda case: replace(case, same_inputs=all(act.place for act in case.acts)))


def nestings(by_policy: bool = False) -> st.SearchStrategy[ComposedCase]:
    """Any nesting of any composed net; by policy, those in which policies choose."""
    names = [name for name, acts in NESTINGS.items() if not by_policy or any(act.chosen for act in acts)]
    return composed(st.sampled_from(names).map(lambda name: nesting(name, by_policy)), same_inputs=False)


@st.composite
def same_module(draw: st.DrawFn, by_policy: bool = False) -> tuple[Act, ...]:
    """``checkpoint`` and sharding on one module, in either order; then perhaps sharding of the root."""
    place = draw(st.sampled_from(PLACES))
    function: Function = "FULL_SHARD" if by_policy else "fully_shard"
    both = [Act(function, place, draw(choices(by_policy))), Act("checkpoint", place)]
    return (*draw(st.permutations(both)), *draw(perhaps(Act(function))))


@st.composite
def inside_sharded(draw: st.DrawFn) -> tuple[Act, ...]:
    """``fully_shard`` on both units, ``checkpoint`` on one inside them or both, in any order; then perhaps the root."""
    sharded = [Act("fully_shard", unit, draw(choices(False))) for unit in UNITS]
    inner = draw(st.lists(st.sampled_from(["1.0", "2.0", "2.1"]), min_size=1, unique=True))
    acts = draw(st.permutations([*sharded, *(Act("checkpoint", place) for place in inner)]))
    return (*acts, *draw(perhaps(Act("fully_shard"))))


@st.composite
def under_root(draw: st.DrawFn, root: Act) -> tuple[Act, ...]:
    """``checkpoint`` on some modules, of which one may lie in another, and ``root``, before, between or after them."""
    places = draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True))
    return tuple(draw(st.permutations([*(Act("checkpoint", place) for place in places), root])))


@st.composite
def state_dict_cases(draw: st.DrawFn, cut: Function, whole: Function) -> ComposedCase:
    """One unit is cut, the other kept whole, and the rest belongs to none."""
    places = draw(st.permutations(UNITS))
    return draw(composed(st.just((Act(cut, places[0]), Act(whole, places[1])))))


@st.composite
def both_on_one(draw: st.DrawFn) -> ComposedCase:
    """``fully_shard`` and ``replicate`` on one module."""
    place = draw(st.sampled_from(["", *PLACES]))
    return draw(composed(st.just((Act("fully_shard", place), Act("replicate", place)))))


@st.composite
def siblings(draw: st.DrawFn) -> ComposedCase:
    """``fully_shard`` and ``replicate`` on all modules of a net, side by side in any order; nothing on the root."""
    functions: st.SearchStrategy[Function] = st.sampled_from(["fully_shard", "replicate"])
    places = draw(st.permutations(range(len(HEAD))))
    both = [Act("fully_shard", str(places[0])), Act("replicate", str(places[1])), Act(draw(functions), str(places[2]))]
    net = replace(SMALL, dim=draw(st.integers(1, 4)))
    return draw(composed(st.just(tuple(both)), net=net, same_inputs=False))


def choices(by_policy: bool) -> st.SearchStrategy[str]:
    """What is chosen inside a module: its Linears; or, where that is not by a policy, nothing."""
    return st.just("Linear") if by_policy else st.sampled_from(["Linear", ""])


def perhaps(act: Act) -> st.SearchStrategy[tuple[Act, ...]]:
    """The act, or nothing."""
    return st.sampled_from([(act,), ()])


@st.composite
def strategy_cases(draw: st.DrawFn, policy: str = "") -> ComposedCase:
    """Nets spread by a strategy, with or without a policy of either kind; hybrid ones on meshes of any shape."""
    strategies: list[Function] = ["HYBRID_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
    strategy = draw(st.sampled_from(strategies))
    act = Act(strategy, "", policy or draw(st.sampled_from(["Unit", "Linear", ""])), draw(st.booleans()))
    mesh = draw(hsdp_meshes()) if strategy == "HYBRID_SHARD" else ()
    size = mesh[0] * mesh[1] if mesh else draw(world_sizes(2))
    return draw(composed(st.just((act,)), world_size=size, mesh=mesh))
