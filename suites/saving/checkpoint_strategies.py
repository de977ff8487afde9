"""Which nets are saved and loaded, and between which layouts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import lcm
from typing import Any

from hypothesis import strategies as st

from harness.trial import most_ranks
from harness.worlds.attached.fleet import shared_folder
from suites.composition.compose import Composite
from suites.kit.hsdp import hsdp_meshes
from suites.kit.parallel import full_parts
from suites.kit.strategies import world_sizes
from suites.saving.chains import ChainNet, CheckpointCase, Kind, Layout
from suites.saving.optimizer_states import KeptCase


@contextmanager
def directory() -> Iterator[str]:
    """A new directory that all ranks save into and load from; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fsdp-conformance-", dir=shared_folder()) as path:
        yield path


@st.composite
def layouts(draw: st.DrawFn, *kinds: Kind, at_least: int = 1) -> Layout:
    """A layout of one of these kinds, on at most four of the ranks that there are; of three axes, on eight."""
    kind = draw(st.sampled_from(kinds))
    if kind == "HSDP":
        replicas, shards = draw(hsdp_meshes())
        return Layout(kind, replicas, shards)
    if kind == "2-D":
        shards, tp = draw(st.sampled_from([(2, 2), (1, 2), (2, 1), (1, 4)]))
        return Layout(kind, 1, shards, tp)
    if kind == "3-D":
        shapes = [(2, 2, 2)] * (most_ranks() >= 8) + [(2, 1, 2), (1, 2, 2)]
        return Layout(kind, *draw(st.sampled_from(shapes)))
    size = draw(world_sizes(at_least))
    return Layout(kind, 1, size) if kind == "1-D" else Layout(kind, size)


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


@st.composite
def checkpoint_cases(draw: st.DrawFn, saved: Any, loaded: Any, /, **fixed: Any) -> CheckpointCase:
    """A net between two layouts, either of which is saved."""
    layouts = draw(st.permutations([draw(saved), draw(loaded)]))
    dtype = draw(st.sampled_from(["float32", "float64", "bfloat16"]))
    net = draw(fixed.pop("net") if "net" in fixed else chain_nets(*layouts))
    return CheckpointCase(**{
        "net": net,
        "saved": layouts[0],
        "loaded": layouts[1],
        "sharded": draw(st.sampled_from([(), (0,), (1,), (0, 1)])),
        "dtype": dtype,
        "loaded_dtype": draw(st.sampled_from([dtype, dtype, "float32", "float64"])),
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
