"""What fills a template, and what a recorded case is checked for beyond the types of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from harness.data.case import Case
from harness.reproduce.script import Code, code

#: No case of the suites has a larger world, or larger dims, batches and steps.
MOST = 64
DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
#: The longest expression on one line.
WIDTH = 100


class Filling(NamedTuple):
    """A template's file, what it uses of the subject by torch's names, and its values."""

    template: str
    uses: tuple[str, ...]
    values: dict[str, Any]


@dataclass(frozen=True)
class Family:
    """Requirements that draw cases of this very class, and how a script of theirs is filled; None if it cannot be."""

    cases: type[Case]
    fill: Callable[[Any], Filling | None]


def shown(family: Family, *chapters: str) -> dict[str, Family]:
    """The same for several requirements: ``"parity: exact general"`` is two of one chapter."""
    words = [chapter.split(": ") for chapter in chapters]
    return {f"{chapter}/{name}": family for chapter, names in words for name in names.split()}


def dtype_of(name: str) -> torch.dtype:
    """A floating dtype by its name. Raises ValueError for any other word."""
    if name not in DTYPES:
        raise ValueError(f"expected a dtype of {', '.join(DTYPES)}, got {name!r:.40}")
    return DTYPES[name]


def check(fits: bool, expected: str) -> None:
    """Raise ValueError if a recorded case is none that the suites draw."""
    if not fits:
        raise ValueError(f"expected a case as the suites draw them, with {expected}")


def check_sizes(*sizes: int) -> None:
    """The same for numbers of ranks, layers, rows or steps."""
    check(all(1 <= size <= MOST for size in sizes), f"sizes from 1 to {MOST}")


def modules(net: str, sharded: Iterable[int]) -> Code:
    """The blocks that are sharded by themselves, and then the whole, as a tuple in Python."""
    blocks = [code("{}[{}]", Code(net), place) for place in sharded]
    return Code(f"({', '.join([*blocks, net])}{'' if blocks else ','})")


def sequential(layers: Sequence[Code]) -> Code:
    """A net in Python, on one line if that is short."""
    line = Code(f"nn.Sequential({', '.join(layers)})")
    long = "".join(f"        {each},\n" for each in layers)
    return line if len(line) <= WIDTH else Code(f"nn.Sequential(\n{long}    )")
