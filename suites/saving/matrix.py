"""The matrix of state: every way in which a net may lie on ranks where it is saved, and where it is loaded.

A cell of it is one kind of layout on some ranks, where it is saved, and a number of ranks that load it, in all layouts
that these ranks can have::

    2-D on 2 ranks, loaded by 3:    (1, 2) is loaded by 1-D (3), 2-D (1, 3) and 2-D (3, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from harness.trial import most_ranks
from suites.kit.strategies import MOST, examples_first, is_thorough
from suites.saving.chains import ChainNet, CheckpointCase, Layout
from suites.saving.checkpoint_strategies import DTYPES, WIDE, Family, chain_nets, checkpoint_cases, layouts_of

FAMILIES: tuple[Family, ...] = ("1-D", "HSDP", "2-D", "replicate", "unsharded")
#: What is said to be saved and loaded by which requirement: a vendor need not have all. Together they are all pairs.
GROUPS: dict[str, tuple[tuple[Family, ...], tuple[Family, ...]]] = {
    "shards": (("1-D", "unsharded"), ()),
    "replicas of shards": (("HSDP",), ("1-D", "unsharded")),
    "tensor parallel": (("2-D",), ("1-D", "unsharded")),
    "replicas": (("replicate",), ("1-D", "unsharded")),
    "mixed": (("HSDP", "2-D", "replicate"), ()),
}


class Cell(NamedTuple):
    """The layout that saves, the layouts that may load, and their numbers of ranks."""

    saved: Family
    size: int
    loaded: tuple[Family, ...]
    ranks: int


def words(layout: Layout) -> str:
    """A layout as a person says it: ``HSDP 2×1``."""
    sizes = {"HSDP": (layout.replicas, layout.shards), "2-D": (layout.shards, layout.tp)}
    return f"{layout.kind} {'×'.join(map(str, sizes.get(layout.kind, (layout.ranks,))))}"


def loading(group: str, saved: Family) -> tuple[Family, ...]:
    """The layouts that load what ``saved`` has saved."""
    own, others = GROUPS[group]
    if group == "mixed":
        return tuple(other for other in own if other != saved)
    return (*own, *others) if saved in own else own


def cells(group: str) -> list[Cell]:
    """Every cell of a group, up to four ranks on either side."""
    own, others = GROUPS[group]
    sizes = range(1, MOST + 1)
    found = [Cell(saved, a, loading(group, saved), b) for saved in (*own, *others) for a in sizes for b in sizes]
    return [cell for cell in found if layouts_of(cell.saved, cell.size) and loaders(cell)]


def loaders(cell: Cell) -> tuple[Layout, ...]:
    """All layouts in which a cell's ranks can load."""
    return tuple(layout for family in cell.loaded for layout in layouts_of(family, cell.ranks))


# What is tried.


def case_of(cell: Cell, turn: int, trained: bool) -> CheckpointCase:
    """A cell with a net that has all that a net may have; of shapes and dtypes those whose ``turn`` it is.

    Of two layers the second has rows that 2, 3 and 4 ranks do not divide; so has the first if nothing is trained.
    """
    shapes, loaded = layouts_of(cell.saved, cell.size), loaders(cell)
    saved = shapes[turn % len(shapes)]
    hidden = lcm(2, *(layout.tp for layout in (saved, *loaded))) if trained else 7
    meta = trained and turn % 2 == 0
    dtype, loaded_dtype = ("float64", "float64") if trained else (DTYPES[turn % 3], DTYPES[turn // 3 % 3])
    return CheckpointCase(
        net=ChainNet(
            (3, hidden, 5), tied=not meta, frozen=True, unused=may_be_unused(trained, saved, *loaded), buffer=True
        ),
        saved=saved,
        loaded=loaded[0],
        more_loaded=loaded[1:],
        sharded=((), (0,), (1,), (0, 1))[turn % 4],
        dtype=dtype,
        loaded_dtype=loaded_dtype,
        optimizer=("Adam", "SGD")[turn // 2 % 2] if trained else "Adam",
        meta=meta,
        seed=turn,
    )


def may_be_unused(trained: bool, *layouts: Layout) -> bool:
    """Replicas of plain parameters, as DDP has them, need not wait for gradients that never come."""
    return not trained or all(layout.kind != "replicate" for layout in layouts)


def tried(first: Sequence[CheckpointCase], group: str, trained: bool = False) -> Callable[[Any], Any]:
    """Have a test try these cases, then every cell if the profile in force draws as many cases as that, then others."""
    chosen = [*first, *(every_case(group, trained) if is_thorough() else ())]

    def decorate(test: Any) -> Any:
        test = given(case=matrix_cases(group, trained))(test)
        for case in reversed(chosen):
            test = example(case=case)(test)
        return examples_first()(test)

    return decorate


def every_case(group: str, trained: bool = False) -> list[CheckpointCase]:
    """A case of every cell."""
    return [case_of(cell, turn, trained) for turn, cell in enumerate(cells(group))]


@st.composite
def matrix_cases(draw: st.DrawFn, group: str, trained: bool = False) -> CheckpointCase:
    """A pair of any cell that this world has ranks for, any net, any two dtypes; what is trained is so in float64."""
    cell = draw(st.sampled_from([c for c in cells(group) if max(c.size, c.ranks) <= most_ranks()]))
    saved, loaded = draw(st.sampled_from(layouts_of(cell.saved, cell.size))), draw(st.sampled_from(loaders(cell)))
    fixed: dict[str, Any] = {}
    if trained:
        meta = draw(st.booleans())  # ties are restored after ``to_empty``, which is not the subject here
        net = draw(chain_nets(saved, loaded, even=True, **{"tied": False} if meta else {}))
        net = replace(net, unused=net.unused and may_be_unused(trained, saved, loaded))
        optimizer = draw(st.sampled_from(["Adam", "SGD", *([] if net.unused else ["AdamW"])]))
        fixed = {"net": st.just(net), "meta": meta, "optimizer": optimizer, "steps": draw(st.integers(1, 2)), **WIDE}
    return draw(checkpoint_cases(st.just((saved, loaded)), **fixed))
