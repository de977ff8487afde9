"""What Hypothesis draws of nets as data: valid by construction, with what shrinks first drawn first.

A plan of groups follows from the net: what shares parameters stays in one group, a list holds modules that run once and
do not lie within each other, and every module is sharded before those that it lies within, else in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import combinations
from typing import Any

from hypothesis import strategies as st
from torch import nn

from reference_models import nets
from suites.generated.net_cases import GeneratedCase, Group
from suites.kit.hsdp import RESHARDS
from suites.kit.nets import LEAVES, OUTPUTS, Block, Named, Net, skeleton
from suites.kit.strategies import drawn, pairs_of, related, shape_of, world_sizes
from suites.kit.trees import is_closed
from suites.oracle.low_precision import NEVER_RUN

#: Two or three: four would find little more, and starting a world takes as long as several cases on it.
FEW_RANKS = world_sizes(2).map(lambda ranks: min(ranks, 3))
DTYPES = st.sampled_from(["float64", "float64", "float32"])
#: Leaves of which every layer runs, takes one input and gives one output, and changes nothing else.
PURE = ("linear", "uneven", "mlp", "root parameters", "convolution", "attention")
#: Blocks of few parameters.
NARROW = ("linear", "uneven", "root parameters")


@cache
def leaves(kinds: tuple[str, ...] = tuple(LEAVES)) -> st.SearchStrategy[Block]:
    """Blocks without blocks in them."""
    return st.sampled_from(tuple(Block(kind) for kind in kinds))


@cache
def nests(kinds: tuple[str, ...] = tuple(LEAVES)) -> st.SearchStrategy[Block]:
    """One or two blocks, one after the other or around a residual."""
    inner = st.lists(leaves(kinds), min_size=1, max_size=2).map(tuple)
    return st.builds(Block, st.sampled_from(("residual", "sequence")), inner)


@cache
def twices() -> st.SearchStrategy[Block]:
    """A block that runs twice."""
    return st.builds(lambda block: Block("twice", (block,)), leaves((*NARROW, "norms")) | nests(NARROW))


@cache
def branches() -> st.SearchStrategy[Block]:
    """Two or three branches."""
    return st.builds(lambda inner: Block("branches", tuple(inner)), st.lists(leaves(NARROW), min_size=2, max_size=3))


@st.composite
def nets_with(
    draw: st.DrawFn,
    /,
    special: st.SearchStrategy[Block] | None = None,
    kinds: tuple[str, ...] = tuple(LEAVES),
    dims: tuple[int, int] = (2, 6),
) -> Net:
    """A few leaves or nests of ``kinds``, or one with a ``special`` block before or after it; any kind of output."""
    least, most = (1, 3) if special is None else (0, 1)
    blocks = draw(st.lists(leaves(kinds) | nests(kinds), min_size=least, max_size=most))
    if special is not None:
        blocks.insert(draw(st.integers(0, len(blocks))), draw(special))
    return Net(draw(st.integers(*dims)), tuple(blocks), draw(st.sampled_from(tuple(OUTPUTS))))


@st.composite
def shared_nets(draw: st.DrawFn) -> Net:
    """Nets with one or two pairs of places that hold one parameter, or one module."""
    kinds = ("linear", "root parameters", "mlp")
    net = draw(nets_with(special=leaves(kinds), kinds=PURE))
    net = replace(net, blocks=(*net.blocks, draw(leaves(("linear", net.blocks[0].kind)))))
    built = skeleton(net)
    parameters = pairs_of({name: tuple(parameter.shape) for name, parameter in built.named_parameters()})
    modules = pairs_of({name: shape_of(m) for name, m in built.named_modules() if name and runs(m)})
    pairs = [st.sampled_from(pairs) for pairs in (parameters, modules) if pairs]
    shared = draw(st.lists(st.one_of(pairs), min_size=1, max_size=2, unique_by=lambda pair: pair[0])) if pairs else []
    return replace(net, shared=tuple(shared))


@st.composite
def frozen_nets(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(LEAVES)) -> Net:
    """Nets with some frozen modules or parameters; the last block trains."""
    net = draw(nets_with(leaves(("frozen", "linear")), kinds))
    net = replace(net, blocks=(*net.blocks, Block("linear")))
    built, last = skeleton(net), f"blocks.{len(net.blocks) - 1}"
    names = [name for name, _ in [*built.named_parameters(), *built.named_modules()] if name.startswith("blocks.")]
    free = [name for name in names if not related(name, last)]
    return replace(net, frozen=tuple(draw(st.lists(st.sampled_from(free), max_size=3, unique=True))))


def runs(module: nn.Module) -> bool:
    """Whether a module's forward is called."""
    return not isinstance(module, NEVER_RUN)


@lru_cache(maxsize=256)
def shardable(net: Net | Named) -> tuple[str, ...]:
    """The modules below the root that can be sharded by themselves."""
    built = skeleton(net)
    names = [name for name, module in built.named_modules() if name and runs(module)]
    return tuple(name for name in names if is_closed(built, name)) if shares(built) else tuple(names)


def shares(net: nn.Module) -> bool:
    """Whether any module or parameter has two names."""
    every, once = net.named_parameters(remove_duplicate=False), net.parameters()
    return len(list(every)) > len(list(once))


@lru_cache(maxsize=256)
def listable(net: Net | Named) -> tuple[tuple[str, str], ...]:
    """Pairs of modules that can be sharded as one list: both run once, and neither lies within the other.

    Of nets that share, only those that cannot be sharded but together: so it takes no time to find them.
    """
    built = skeleton(net)
    several = [name for name, module in built.named_modules() if isinstance(module, (nets.Twice, nets.Branches))]
    several += [place for place, _ in getattr(net, "shared", ()) if is_module(built, place)]
    several += [source for place, source in getattr(net, "shared", ()) if is_module(built, place)]
    names = [name for name, module in built.named_modules() if name and runs(module)]
    once = [name for name in names if not any(related(name, other) for other in several)]
    if not shares(built):
        return apart(once)
    return tuple(pair for pair in apart(set(once) - set(shardable(net))) if is_closed(built, *pair))


def apart(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """All pairs of which neither lies within the other."""
    return tuple(pair for pair in combinations(sorted(names), 2) if not related(*pair))


def is_module(net: nn.Module, place: str) -> bool:
    """Whether a name is that of a module."""
    return place in dict(net.named_modules(remove_duplicate=False))


@st.composite
def plans(
    draw: st.DrawFn, net: Net | Named, lists: bool = True, alone: tuple[str, ...] | None = None
) -> tuple[Group, ...]:
    """Some modules, each with a reshard policy, perhaps a list of two, in any order that has children first."""
    free = shardable(net) if alone is None else alone
    chosen = [(name,) for name in draw(st.lists(st.sampled_from(free), max_size=4, unique=True))] if free else []
    mixture = net == Named("mixed dtypes")  # of which what trains in float64 must be a group of its own
    pairs = listable(net) if lists and not mixture else ()
    if pairs and draw(st.integers(0, 2)) == 2:
        pair = draw(st.sampled_from(pairs))
        chosen = [one for one in chosen if one[0] not in pair] + [pair]  # type: ignore[list-item]
    if mixture and ("wide",) not in chosen:
        chosen.append(("wide",))
    groups = [Group(modules, draw(RESHARDS)) for modules in children_first(chosen)]
    return (*groups, Group(("",), draw(RESHARDS)))


def children_first(chosen: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The same, as near to their order as can be, with what lies within another before it."""
    left, ordered = list(chosen), []
    while left:
        first = next(one for one in left if not any(lies_within(other, one) for other in left if other != one))
        ordered.append(first)
        left.remove(first)
    return ordered


def lies_within(inner: Iterable[str], outer: Iterable[str]) -> bool:
    """Whether a module of one group lies within one of the other."""
    return any(one.startswith(f"{other}.") for one in inner for other in outer)


@st.composite
def generated_cases(
    draw: st.DrawFn,
    /,
    nets: st.SearchStrategy[Any] | None = None,
    lists: bool = True,
    meshes: st.SearchStrategy[tuple[int, int]] | None = None,
    **fixed: Any,
) -> GeneratedCase:
    """Training of a net: its plan, mesh, dtype and steps; ``fixed`` fields are as given, or drawn as given."""
    net: Net | Named = draw(nets if nets is not None else nets_with())
    mesh = draw(meshes) if meshes is not None else ()
    return GeneratedCase(**{
        "world_size": mesh[0] * mesh[1] if mesh else draw(FEW_RANKS),
        "net": net,
        "groups": () if "groups" in fixed else draw(plans(net, lists)),
        "mesh": mesh,
        "dtype": "float32" if net == Named("mixed dtypes") else draw(DTYPES),
        "steps": draw(st.integers(1, 2)),
        "batch": draw(st.integers(2, 3)),
        "seed": draw(st.integers(0, 2**16)),
        **drawn(draw, fixed),
    })  # fmt: skip


@st.composite
def nested_cases(draw: st.DrawFn, /, **fixed: Any) -> GeneratedCase:
    """Nests of which the whole, the parts and what lies in these are sharded one by one, in any order that goes."""
    net = draw(nets_with(nests(NARROW), kinds=NARROW))
    names = tuple(name for name in shardable(net) if name.count(".") < 5)
    chosen = draw(st.permutations(names))[: draw(st.integers(2, 6))]
    order = children_first([(name,) for name in chosen])
    return draw(generated_cases(nets=st.just(net), groups=(*map(Group, order), Group()), **fixed))


@st.composite
def branched_cases(draw: st.DrawFn, apart: bool) -> GeneratedCase:
    """Nets with branches. Either all ranks take the same branch in a step, or each its own: then none is sharded alone.

    In the second step others run than in the first.
    """
    net = draw(nets_with(branches(), kinds=NARROW))
    fixed: dict[str, Any] = {"nets": st.just(net), "world_size": draw(FEW_RANKS), "steps": 2}
    if not apart:
        together = st.sampled_from((((0,), (1,)), ((1,), (0,)), ((0,), (0,)), ((2,), (0,))))
        return draw(generated_cases(routes=together, **fixed))
    routes = tuple(tuple(draw(st.integers(0, 2)) for _ in range(fixed["world_size"])) for _ in range(2))
    free = tuple(name for name in shardable(net) if ".branches." not in name)
    return draw(generated_cases(routes=routes, groups=plans(net, lists=False, alone=free), **fixed))


@st.composite
def checkpointed_cases(draw: st.DrawFn, nets: st.SearchStrategy[Net] | None = None) -> GeneratedCase:
    """Some blocks run again in backward: not those with running statistics, which would be moved again."""
    case = draw(generated_cases(nets=nets_with(kinds=PURE) if nets is None else nets, lists=False))
    built = skeleton(case.net)
    blocks = [name for name, module in built.named_modules() if name.count(".") == 1 and runs(module)]
    again = draw(st.lists(st.sampled_from(blocks), min_size=1, max_size=2, unique=True))
    return replace(case, checkpointed=tuple(sorted(again)))


@st.composite
def ahead_cases(draw: st.DrawFn, nets: st.SearchStrategy[Net] | None = None) -> GeneratedCase:
    """Every sharded module prefetches some of the later ones, in any order."""
    case = draw(generated_cases(nets=nets, lists=False))
    sharded = {name for group in case.groups for name in group.modules if name}
    order = [name for name, _ in skeleton(case.net).named_modules() if name in sharded]
    ahead = [(name, tuple(draw(st.permutations(order[place + 1 :]))[:2])) for place, name in enumerate(order[:-1])]
    return replace(case, ahead=tuple(ahead))
