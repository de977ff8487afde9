"""Which nets are saved and loaded, and between which layouts: as drawn, and all of the matrix of state.

A cell of that matrix is one kind of layout on some ranks, where a net is saved, and a number of ranks that load it, in
all layouts that these ranks can have::

    2-D on 2 ranks, loaded by 3:    (1, 2) is loaded by 1-D (3), 2-D (1, 3) and 2-D (3, 1)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import lcm
from typing import Any, Literal

from hypothesis import strategies as st

from harness.trial import most_ranks
from harness.worlds.attached.fleet import shared_folder
from suites.kit.parallel import full_parts
from suites.kit.strategies import MOST, examples, examples_first, given, is_thorough
from suites.saving.chains import ChainNet, CheckpointCase, Layout

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
def chain_nets(draw: st.DrawFn, /, *layouts: Layout) -> ChainNet:
    """Two or three layers, or two that tensor parallelism cuts, which leaves no rank without rows."""
    common = lcm(*(layout.tp for layout in layouts))
    count = draw(st.integers(2, 3)) if common == 1 else 2
    widths = draw(st.lists(st.integers(1, 7), min_size=count + 1, max_size=count + 1))
    if common > 1:
        rows = st.integers(1, 9).filter(lambda rows: all(full_parts((rows, 1), layout.tp) for layout in layouts))
        widths[1] = draw(rows)
    return ChainNet(tuple(widths), *(draw(st.booleans()) for _ in ("bias", "tied", "frozen", "unused", "buffer")))


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


# The matrix.

FAMILIES: tuple[Family, ...] = ("1-D", "HSDP", "2-D", "replicate", "unsharded")
#: What is said to be saved and loaded by which requirement: a vendor need not have all. Together they are all pairs.
GROUPS: dict[str, tuple[tuple[Family, ...], tuple[Family, ...]]] = {
    "shards": (("1-D", "unsharded"), ()),
    "replicas of shards": (("HSDP",), ("1-D", "unsharded")),
    "tensor parallel": (("2-D",), ("1-D", "unsharded")),
    "replicas": (("replicate",), ("1-D", "unsharded")),
    "mixed": (("HSDP", "2-D", "replicate"), ()),
}
#: The layouts of which any saves, and all of those that load what it saved.
Cell = tuple[tuple[Layout, ...], tuple[Layout, ...]]


def loading(group: str, saved: Family) -> tuple[Family, ...]:
    """The layouts that load what ``saved`` has saved."""
    own, others = GROUPS[group]
    if group == "mixed":
        return tuple(other for other in own if other != saved)
    return (*own, *others) if saved in own else own


def cells(group: str) -> list[Cell]:
    """Every cell of a group, up to four ranks on either side."""
    found = []
    for saved, ranks, others in product(sum(GROUPS[group], ()), range(1, MOST + 1), range(1, MOST + 1)):
        loaders = sum((layouts_of(family, others) for family in loading(group, saved)), ())
        found.append((layouts_of(saved, ranks), loaders))
    return [(savers, loaders) for savers, loaders in found if savers and loaders]


def case_of(cell: Cell, turn: int, trained: bool) -> CheckpointCase:
    """A cell with a net that has all that a net may have; of layouts and dtypes those whose ``turn`` it is.

    Of two layers the second has rows that 2, 3 and 4 ranks do not divide; so has the first if nothing is trained.
    Replicas of plain parameters, as DDP has them, need not wait for gradients that never come.
    """
    savers, (loaded, *more) = cell
    saved = savers[turn % len(savers)]
    every = (saved, loaded, *more)
    unused = not trained or all(layout.kind != "replicate" for layout in every)
    hidden = lcm(2, *(layout.tp for layout in every)) if trained else 7
    meta = trained and turn % 2 == 0  # ties are restored after ``to_empty``, which is not the subject here
    optimizers = ("Adam", "SGD") if unused else ("Adam", "SGD", "AdamW")
    dtypes = {"dtype": DTYPES[turn % 3], "loaded_dtype": DTYPES[turn // 3 % 3]}
    return CheckpointCase(
        net=ChainNet((3, hidden, 5), tied=not meta, frozen=True, unused=unused, buffer=True),
        saved=saved,
        loaded=loaded,
        more_loaded=tuple(more),
        sharded=((), (0,), (1,), (0, 1))[turn % 4],
        optimizer=optimizers[turn // 2 % len(optimizers)] if trained else "AdamW",
        meta=meta,
        seed=turn,
        **(WIDE if trained else dtypes),
    )


def every_case(group: str, trained: bool = False) -> list[CheckpointCase]:
    """A case of every cell."""
    return [case_of(cell, turn, trained) for turn, cell in enumerate(cells(group))]


def tried(first: Sequence[CheckpointCase], group: str, trained: bool = False) -> Callable[[Any], Any]:
    """Have a test try these cases, then every cell if the profile in force draws as many cases as that, then others."""
    chosen = [*first, *(every_case(group, trained) if is_thorough() else ())]
    fitting = st.deferred(lambda: st.sampled_from([cell for cell in cells(group) if fits(cell)]))

    def decorate(test: Any) -> Any:
        test = given(case=st.builds(case_of, fitting, st.integers(0, 2**16), st.just(trained)))(test)
        return examples_first()(examples(chosen)(test))

    return decorate


def fits(cell: Cell) -> bool:
    """Whether this world has the ranks."""
    return all(layouts[0].ranks <= most_ranks() for layouts in cell)
