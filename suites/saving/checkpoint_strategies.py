"""Which nets are saved and loaded, and between which layouts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import lcm
from typing import Any, Literal

from hypothesis import strategies as st

from harness.trial import most_ranks
from harness.worlds.attached.fleet import shared_folder
from suites.composition.compose import Composite
from suites.kit.parallel import full_parts
from suites.kit.strategies import MOST, world_sizes
from suites.saving.chains import ChainNet, CheckpointCase, Layout
from suites.saving.optimizer_states import KeptCase

Family = Literal["1-D", "HSDP", "2-D", "replicate", "unsharded"]
DTYPES = ("float32", "float64", "bfloat16")
#: Trained in float64, so that nothing but rounding of 53 bits is to be allowed for.
WIDE: dict[str, Any] = {"dtype": "float64", "loaded_dtype": "float64"}


@contextmanager
def directory() -> Iterator[str]:
    """A new directory that all ranks save into and load from; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fsdp-conformance-", dir=shared_folder()) as path:
        yield path


def layouts_of(family: Family, size: int) -> tuple[Layout, ...]:
    """All layouts of a family on so many ranks; two axes take two ranks, and a net that is not sharded takes one."""
    shapes = [(a, size // a) for a in range(1, size + 1) if size % a == 0 and size > 1]
    found: dict[Family, list[Layout]] = {
        "1-D": [Layout("1-D", 1, size)],
        "HSDP": [Layout("HSDP", replicas, shards) for replicas, shards in shapes],
        "2-D": [Layout("2-D", 1, shards, tp) for shards, tp in shapes],
        "replicate": [Layout("replicate", size), Layout("replicate-fsdp", size)],
        "unsharded": [Layout("unsharded")] * (size == 1),
    }
    return tuple(found[family])


@st.composite
def layouts(draw: st.DrawFn, *kinds: Family | Literal["3-D"], at_least: int = 1) -> Layout:
    """A layout of one of these kinds, on at most four of the ranks that there are; of three axes, on eight."""
    kind = draw(st.sampled_from(kinds))
    if kind == "3-D":
        shapes = [(2, 2, 2)] * (most_ranks() >= 8) + [(2, 1, 2), (1, 2, 2)]
        return Layout(kind, *draw(st.sampled_from(shapes)))
    sizes = range(at_least, max(at_least, min(MOST, most_ranks())) + 1)
    return draw(st.sampled_from([layout for size in sizes for layout in layouts_of(kind, size)]))


@st.composite
def chain_nets(draw: st.DrawFn, /, *layouts: Layout, even: bool = False, **fixed: Any) -> ChainNet:
    """Two or three layers, or two that tensor parallelism cuts, evenly if so asked for; widths shards need not divide.

    No rank of tensor parallelism is left without rows.
    """
    common = lcm(*(layout.tp for layout in layouts))
    count = draw(st.integers(2, 3)) if common == 1 else 2
    widths = draw(st.lists(st.integers(1, 7), min_size=count + 1, max_size=count + 1))
    if common > 1:
        rows = st.integers(1, 9).filter(lambda rows: all(full_parts((rows, 1), layout.tp) for layout in layouts))
        widths[1] = draw(st.sampled_from([common, 2 * common]) if even else rows)
    flags = {name: draw(st.booleans()) for name in ("bias", "tied", "frozen", "unused", "buffer") if name not in fixed}
    return ChainNet(**{"widths": tuple(widths), **flags, **fixed})


def either_way(one: Any, other: Any) -> st.SearchStrategy[tuple[Layout, Layout]]:
    """Two layouts, either of which is saved."""
    return st.tuples(one, other).flatmap(st.permutations).map(tuple)


@st.composite
def checkpoint_cases(draw: st.DrawFn, layouts: Any, /, **fixed: Any) -> CheckpointCase:
    """A net between two layouts: the one that is saved, and the one that is loaded."""
    saved, loaded = draw(layouts)
    return CheckpointCase(**{
        "net": draw(fixed.pop("net") if "net" in fixed else chain_nets(saved, loaded)),
        "saved": saved,
        "loaded": loaded,
        "sharded": draw(st.sampled_from([(), (0,), (1,), (0, 1)])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "loaded_dtype": draw(st.sampled_from(DTYPES)),
        "seed": draw(st.integers(0, 2**16)),
        **fixed,
    })  # fmt: skip


@st.composite
def kept_cases(draw: st.DrawFn, /, **fixed: Any) -> KeptCase:
    """A layer, two units and perhaps a parameter of the root's own; on two ranks or more."""
    dim, multiplier, bias, own = draw(st.tuples(st.integers(1, 5), st.integers(1, 2), st.booleans(), st.booleans()))
    net = Composite(dim, ("linear", "nested", "nested"), multiplier, bias, own)
    return KeptCase(**{
        "world_size": draw(world_sizes(2)),
        "net": net,
        "kind": draw(st.sampled_from(["Adam", "AdamW", "SGD"])),
        "steps": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**16)),
        **fixed,
    })  # fmt: skip
