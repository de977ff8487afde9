"""Which calls are drawn: dtypes, sizes around those where protocols change, layouts, roots and groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from suites.collectives.collective_cases import (
    EXCHANGES,
    FROM_ONE,
    GATHERS,
    IN_PLACE,
    REDUCING,
    SCATTERS,
    Collective,
    CollectiveCase,
    Data,
    Kind,
)
from suites.kit.strategies import is_thorough, world_sizes

Groups = tuple[tuple[int, ...], ...]

ALL: tuple[Kind, ...] = (*GATHERS, *SCATTERS, "scatter", *IN_PLACE)
MOVING: tuple[Kind, ...] = (*GATHERS, *FROM_ONE, *EXCHANGES)
FLOATS = ("float32", "bfloat16", "float16", "float64")
SUMMED = (*FLOATS, "int64", "int32", "uint8", "int8")
MOVED = (*SUMMED, "bool")
#: What FSDP and DTensor do not send by themselves: a backend may have it or refuse it.
RARE = ("int16", "uint16", "complex64", "float8_e4m3fn", "float8_e5m2")
#: Every size up to two cache lines of the smallest dtype, and then some.
SMALL = st.integers(1, 67)
#: Up to how many numbers a part has in a run of few examples, as a power of two, and in one of many.
TOP, FULL_TOP = 16, 20


@st.composite
def edges(draw: st.DrawFn) -> int:
    """A power of two or a neighbour: there, libraries change algorithms and protocols."""
    top = FULL_TOP if is_thorough() else TOP
    power: int = 2 ** draw(st.integers(7, top))
    return power + draw(st.sampled_from([-1, 0, 1]))


def groups_of(world_size: int) -> st.SearchStrategy[Groups]:
    """One group that is not the world's first ranks, or not all of them."""
    ranks = st.sets(st.integers(0, world_size - 1), min_size=1, max_size=world_size - 1)
    return ranks.map(lambda some: (tuple(sorted(some)),))


def overlapping(world_size: int) -> st.SearchStrategy[Groups]:
    """Groups that share ranks: the rows and columns of a mesh, neighbours in a ring, the same ranks twice."""
    ranks = tuple(range(world_size))
    ring = tuple(tuple(sorted((rank, (rank + 1) % world_size))) for rank in ranks)
    mesh = ((0, 1), (2, 3), (0, 2), (1, 3))
    return st.sampled_from([(ranks, ranks), ring, *([mesh] if world_size == 4 else [])])


@st.composite
def collective_cases(
    draw: st.DrawFn,
    /,
    kinds: Sequence[Kind],
    dtypes: Sequence[str],
    at_least: int = 2,
    most_calls: int = 5,
    groups: Callable[[int], st.SearchStrategy[Groups]] = lambda _: st.just(()),
    large: bool = True,
    sizes: st.SearchStrategy[int] = SMALL,
    **fixed: Any,
) -> CollectiveCase:
    """Some small calls, and perhaps a large one, on all ranks, which is no group, or on ``groups``.

    ``fixed`` fields of a call are strategies or values.
    """
    world_size = draw(world_sizes(at_least))
    chosen = draw(groups(world_size))
    members = min((len(group) for group in chosen), default=world_size)
    how = {
        "kind": st.sampled_from(kinds),
        "dtype": st.sampled_from(dtypes),
        "root": st.integers(0, members - 1),
        **{name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fixed.items()},
    }
    few = st.lists(st.builds(Collective, numel=sizes, **how), min_size=1, max_size=most_calls)
    one = st.lists(st.builds(Collective, numel=edges(), **how), max_size=1 if large else 0)
    calls = (*draw(few), *draw(one))
    return CollectiveCase(world_size, calls, chosen, draw(st.integers(0, 2**16)), draw(st.integers(0, 3)))


@st.composite
def often(draw: st.DrawFn, cases: st.SearchStrategy[CollectiveCase], times: int = 12) -> CollectiveCase:
    """The first call of a case, many times; each time members bring other numbers."""
    case = draw(cases)
    return replace(case, calls=case.calls[:1] * times)


def in_each_group(cases: st.SearchStrategy[CollectiveCase]) -> st.SearchStrategy[CollectiveCase]:
    """Each call of a case in each of its groups."""
    return cases.map(lambda case: replace(case, calls=tuple(call for call in case.calls for _ in case.groups)))


def unusual() -> st.SearchStrategy[CollectiveCase]:
    """Nothing at all, rare dtypes, averages of integers, bitwise operations: what a backend may refuse."""
    integers = ("int64", "int32", "int8", "uint8")
    return st.one_of(
        collective_cases((*MOVING, *REDUCING), FLOATS, sizes=st.just(0), large=False),
        collective_cases(MOVING, RARE, data="bits", most_calls=2),
        collective_cases(REDUCING, ("int16", "complex64"), most_calls=2),
        collective_cases(REDUCING, integers, op="AVG", data="multiples", most_calls=2),
        collective_cases(REDUCING, integers, op=st.sampled_from(["BAND", "BOR", "BXOR"]), most_calls=2),
    )


def strided(kinds: Sequence[Kind]) -> st.SearchStrategy[CollectiveCase]:
    """Tensors that are not contiguous, of an even number of elements."""
    layouts = st.sampled_from(["strided", "transposed"])
    return collective_cases(kinds, FLOATS, sizes=st.integers(1, 20).map(lambda n: 2 * n), layout=layouts, large=False)


# Cases that are given.


def alone(*call: Any, **more: Any) -> CollectiveCase:
    """One call. Those that may be refused come one in a case: what comes after a refusal is not tried."""
    return CollectiveCase(2, (Collective(*call, **more),))


def every(kinds: Sequence[Kind], dtypes: Sequence[str], *ops: str, data: Data = "bits") -> CollectiveCase:
    """A call of each kind in each dtype, and with each op; and a large one of each kind."""
    how = [(kind, dtype, op) for kind in kinds for dtype in dtypes for op in ops or ("SUM",)]
    small = [Collective(kind, 67, dtype, op, data, root=1) for kind, dtype, op in how]
    return CollectiveCase(2, (*small, *(replace(call, numel=5000) for call in small if call.dtype == dtypes[0])))


def long(*kinds: Kind, data: Data = "bits") -> CollectiveCase:
    """A call of each kind of more than a megabyte, which is no multiple of anything."""
    return CollectiveCase(2, tuple(Collective(kind, 300_007, data=data, root=1) for kind in kinds))


def growing() -> st.SearchStrategy[CollectiveCase]:
    """Four calls of one kind, each longer than the one before."""
    sizes = st.sets(st.integers(1, 20_000), min_size=4, max_size=4).map(sorted)
    return st.builds(
        lambda kind, dtype, sizes: CollectiveCase(2, tuple(Collective(kind, size, dtype) for size in sizes)),
        st.sampled_from(ALL), st.sampled_from(FLOATS), sizes,
    )  # fmt: skip
