"""Scripts that save a net and its optimizer's state on some ranks, and load both on others.

Of the layouts, one axis, replicas of shards and no sharding at all; tensor parallelism and whole replicas have no
template.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from harness.reproduce.script import Code, code
from suites.plain_scripts.filling import Family, Filling, check, check_sizes, dtype_of, modules, shown
from suites.saving.chains import ChainNet, CheckpointCase, Layout


@dataclass(frozen=True)
class Side:
    """How the net lies where it is saved, or loaded: on so many ranks, in how many parts, on which mesh if on any."""

    ranks: int
    parts: int | None
    mesh: Code | None


def side(layout: Layout) -> Side | None:
    """One layout; None if there is no template for its kind."""
    check_sizes(layout.ranks, layout.shards, layout.replicas)
    if layout.tp == 1 and layout.kind == "1-D":
        return Side(layout.ranks, layout.shards, code("dist.init_device_mesh(DEVICE, {})", (layout.ranks,)))
    if layout.tp == 1 and layout.kind == "HSDP":
        names = Code('mesh_dim_names=("replicate", "shard")')
        shape = (layout.replicas, layout.shards)
        return Side(layout.ranks, layout.shards, code("dist.init_device_mesh(DEVICE, {}, {})", shape, names))
    return Side(layout.ranks, None, None) if layout.kind == "unsharded" else None


def moved(case: CheckpointCase) -> Filling | None:
    """Save and load; of a case with several layouts, the first of each."""
    saved, loaded = side(case.saved), side(case.loaded)
    if saved is None or loaded is None:
        return None
    check_sizes(len(case.net.widths) - 1, *case.net.widths)
    check(all(0 <= place < len(case.net.widths) - 1 for place in case.sharded), "layers that there are as sharded ones")
    return Filling("checkpoint.py.j2", ("fully_shard", "state_dicts"), {
        "standard": Code("datetime, sys, tempfile"),
        "layers": layers(case.net),
        "modules": modules("net", case.sharded),
        "tied": len(case.net.widths),
        "saved": saved,
        "loaded": loaded,
        "saved_dtype": dtype_of(case.dtype),
        "loaded_dtype": dtype_of(case.loaded_dtype),
        "allowed": 0,
        "most_ranks": max(saved.ranks, loaded.ranks),
        "runs": [(Code("save"), saved.ranks), (Code("load"), loaded.ranks)],
    })  # fmt: skip


def restored(case: CheckpointCase) -> Filling | None:
    """Load what was saved on the same ranks, into a net of other values."""
    return moved(case.here())


def layers(net: ChainNet) -> list[tuple[int, ...]]:
    """The sizes of the layers that are saved, and False for no bias. Forward is never run."""
    first, last = net.widths[0], net.widths[-1]
    without_bias = () if net.bias else (False,)
    found: list[tuple[int, ...]] = [(*sizes, *without_bias) for sizes in pairwise(net.widths)]
    return found + [(last, last, False)] * 2 * net.tied + [(first, last)] * net.unused


FAMILIES = {
    **shown(Family(CheckpointCase, moved), "state-matrix: shards replicas-of-shards"),
    **shown(Family(CheckpointCase, restored), "distributed-checkpoint: restores restores-hsdp"),
}
