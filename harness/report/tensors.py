"""The tensors of a failing case by rank: each part's shape, and whether it agrees or by what factor it is off.

                  rank 0        rank 1
gradients weight  2×3  ×1.5     1×3  ×1.5
gradients bias    1    agrees   0    agrees
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.data.text import one_line, plural
from harness.records.record import ComparedTensor

#: How many tensors and ranks the table has, and how many dims of a shape it says.
MOST_LINES, MOST_RANKS, MOST_DIMS = 24, 8, 6
#: A factor this close to a fraction of small numbers is that fraction.
_CLOSE, _SMALL = 2e-3, 64
_WHOSE = re.compile(r"rank (\d{1,6})(?:, (.*))?", re.S)


@dataclass(frozen=True)
class Part:
    """What one rank has of a tensor: its shape, and what became of it; ``agrees`` is whether that is right."""

    shape: str
    said: str
    agrees: bool


@dataclass(frozen=True)
class TensorTable:
    """``lines`` have a part for each of ``ranks``, None where it was not compared; those that differ come first.

    ``when`` is the step or action after which they were looked at, ``left_out`` what is not shown.
    """

    when: str
    ranks: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Part | None, ...]], ...]
    left_out: str


def table_of(tensors: Sequence[ComparedTensor]) -> TensorTable | None:
    """The table of a result; None if it compared no tensors, or none differs."""
    if all(one.get("agrees", True) for one in tensors):
        return None
    ranks = sorted({_rank(one) for one in tensors})[:MOST_RANKS]
    named = by_name(tensors)
    order = sorted(named, key=lambda name: all(one.get("agrees", True) for one in named[name]))
    lines = tuple((name, _line(named[name], ranks)) for name in order[:MOST_LINES])
    more = len(named) - len(lines)
    words = [f"rank {rank}" if rank >= 0 else "all ranks" for rank in ranks]
    return TensorTable(_when(tensors[0]), tuple(words), lines, plural(more, "more tensor") if more else "")


def by_name(tensors: Iterable[ComparedTensor]) -> dict[str, list[ComparedTensor]]:
    """The parts of each tensor, by what it is called on all ranks and at all steps."""
    found: dict[str, list[ComparedTensor]] = {}
    for one in tensors:
        name = re.sub(r"^\[\d+\] ?", "", one.get("path", "")[:1000]).replace("'", "")
        found.setdefault(one_line(name, 120) or "it", []).append(one)
    return found


def factor_text(factor: float) -> str:
    """``×1.5``, ``×1/4``, ``×0``, ``×-1``; of what is no fraction of small numbers three digits."""
    if abs(factor) < 1e9:
        near = Fraction(factor).limit_denominator(_SMALL)
        is_simple = abs(near.numerator) <= 1 or near.denominator <= 4
        if is_simple and abs(near - Fraction(factor)) <= _CLOSE * abs(factor):
            return f"×{near}" if abs(near) < 1 else f"×{float(near):g}"
    return f"×{factor:.3g}"


def _line(parts: Sequence[ComparedTensor], ranks: Sequence[int]) -> tuple[Part | None, ...]:
    of_rank = {_rank(one): _part(one) for one in parts}
    return tuple(of_rank.get(rank) for rank in ranks)


def _part(one: ComparedTensor) -> Part:
    shape, times, agrees = one.get("shape", [])[:MOST_DIMS], one.get("times"), one.get("agrees", True)
    said = "empty" if 0 in shape else "agrees" if agrees else "differs" if times is None else factor_text(times)
    return Part("×".join(str(size)[:12] for size in shape) or "a number", said, agrees)


def _rank(one: ComparedTensor) -> int:
    found = _WHOSE.match(one.get("where", "")[:200])
    return int(found[1]) if found else -1


def _when(one: ComparedTensor) -> str:
    found, step = _WHOSE.match(one.get("where", "")[:200]), re.match(r"\[(\d{1,6})\]", one.get("path", ""))
    words = [found[2] if found and found[2] else "", f"step {step[1]}" if step else ""]
    return one_line(", ".join(filter(None, words)), 120)
