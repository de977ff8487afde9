"""Collectives as data: what each member of a group brings to a call, and in which memory its tensors lie.

A ``reduce_scatter_single`` of numel 2 on ranks 1 and 2 of three, by SUM::

    rank 0  is no member
    rank 1  brings [a b c d], gets [a+e b+f]
    rank 2  brings [e f g h], gets [c+g d+h]

Numbers depend on the case's seed, the place of the call and the member, so that no two members bring the same.
Imports no ``torch.distributed``: ranks and oracle make their numbers here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from harness.data.case import Case
from suites.kit.cases import mixed

Kind = Literal[
    "all_gather_single",
    "all_gather",
    "all_gather_in_place",
    "reduce_scatter_single",
    "reduce_scatter",
    "all_reduce",
    "broadcast",
    "scatter",
    "all_to_all_single",
    "all_to_all_uneven",
    "barrier",
]
#: ``whole``: integers whose sums every dtype holds. ``multiples``: of the number of members, so that averages are
#: integers. ``rounded``: fractions of either sign, whose sums are rounded. ``bits``: any bits, also NaNs. ``infinite``:
#: multiples, infinities and NaNs. ``largest``: the largest number of the dtype.
Data = Literal["whole", "multiples", "rounded", "bits", "infinite", "largest"]
#: ``inside`` is contiguous within a larger buffer; ``strided`` and ``transposed`` are not contiguous.
Layout = Literal["plain", "inside", "strided", "transposed"]

GATHERS: tuple[Kind, ...] = ("all_gather_single", "all_gather")
SCATTERS: tuple[Kind, ...] = ("reduce_scatter_single", "reduce_scatter")
FROM_ONE: tuple[Kind, ...] = ("broadcast", "scatter")
EXCHANGES: tuple[Kind, ...] = ("all_to_all_single", "all_to_all_uneven")
REDUCING: tuple[Kind, ...] = (*SCATTERS, "all_reduce")
#: The one tensor of each is input and output.
IN_PLACE: tuple[Kind, ...] = ("all_gather_in_place", "all_reduce", "broadcast")
#: Whichever rank is the root, each member brings a part for each member.
_A_PART_FOR_EACH: tuple[Kind, ...] = (*SCATTERS, "scatter", "all_to_all_single")

#: One rank's memory after a call, ``given`` and ``got``; empty on a rank that is no member of the group.
Memory = dict[str, list[Tensor]]

#: What memory holds that no collective has written.
MARK = 77
MARGIN = 3


@dataclass(frozen=True)
class Collective(Case):
    """One call. ``numel`` counts one member's part; ``root`` is a place in the group, ``factor`` that of PREMUL_SUM."""

    kind: Kind
    numel: int
    dtype: str = "float32"
    op: str = "SUM"
    data: Data = "whole"
    layout: Layout = "plain"
    root: int = 0
    factor: float = 1.0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of all tensors."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def part(self, source: int, target: int) -> int:
        """How many numbers go from one member to another in an exchange; uneven ones differ in both directions."""
        return self.numel + (2 * source + target) % 3 if self.kind == "all_to_all_uneven" else self.numel

    def brings(self, members: int, member: int) -> int:
        """How many numbers a member brings."""
        if self.kind == "all_to_all_uneven":
            return sum(self.part(member, target) for target in range(members))
        return self.numel * members if self.kind in _A_PART_FOR_EACH else self.numel

    def words(self) -> str:
        """The call as a person would write it."""
        reduction = f", {self.op}" if self.kind in REDUCING else ""
        return f"{self.kind}({self.layout} {self.dtype}[{self.numel}]{reduction})"


@dataclass(frozen=True)
class CollectiveCase(Case):
    """Calls in order, each on the next of ``groups``, round and round; on all ranks if there are none.

    Each of ``calls`` is made in so many ``sizes``: of its numel, of one more, and so on. ``rank_order`` is the thread
    world's: another number, another order in which ranks run.
    """

    world_size: int
    calls: tuple[Collective, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    rank_order: int = 0
    sizes: int = 1

    @property
    def steps(self) -> tuple[Collective, ...]:
        """Every single call."""
        return tuple(replace(call, numel=call.numel + more) for call in self.calls for more in range(self.sizes))

    def members(self, place: int) -> tuple[int, ...]:
        """The ranks of the group that makes a call."""
        return self.groups[place % len(self.groups)] if self.groups else tuple(range(self.world_size))

    def brought(self, place: int, member: int) -> Tensor:
        """What a member, by its place in the group, brings to a call: one dim, on CPU."""
        call, members = self.steps[place], len(self.members(place))
        seed = mixed(self.seed, place, member)
        return numbers(call.brings(members, member), seed, call.torch_dtype, call.data, members)


def numbers(count: int, seed: int, dtype: torch.dtype, data: Data, members: int) -> Tensor:
    """Random numbers of one kind; see ``Data``."""
    generator = torch.Generator().manual_seed(seed)
    if data == "bits":
        return _bits(count, generator, dtype)
    if data == "rounded":
        sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
        return (sign * (torch.rand(count, generator=generator, dtype=torch.float64) * 3.875 + 0.125)).to(dtype)
    if data == "largest":
        return torch.full((count,), torch.finfo(dtype).max, dtype=dtype)
    if data == "infinite":
        values = torch.tensor([members, -2.0 * members, math.inf, -math.inf, math.nan], dtype=dtype)
        return values[torch.randint(0, len(values), (count,), generator=generator)]
    unit = members if data == "multiples" else 1
    most = max(1, min(16, 120 // (unit * members)))
    whole = torch.randint(-most, most + 1, (count,), generator=generator) * unit
    return whole.to(dtype) if dtype.is_signed else whole.abs().to(dtype)


def _bits(count: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(dtype)


# Tensors.


def inputs(case: CollectiveCase, place: int, member: int) -> list[Tensor]:
    """The tensors that a member gives to a call that is not in place."""
    call, brought = case.steps[place], case.brought(place, member)
    if call.kind == "reduce_scatter":
        return parts(brought, len(case.members(place)))
    if call.kind == "scatter":
        return parts(brought, len(case.members(place))) if member == call.root else []
    return [brought]


def parts(values: Tensor, count: int) -> list[Tensor]:
    """Values cut into equal parts, which may be empty."""
    return list(values.view(count, -1)) if values.numel() else [values] * count


# Memory.


def laid(values: Tensor, layout: Layout) -> Tensor:
    """The whole memory, of one dim, in which ``values`` lie as the layout says; the rest of it holds ``MARK``."""
    numel = values.numel()
    size = {"inside": numel + 2 * MARGIN, "strided": 2 * numel}.get(layout, numel)
    memory = torch.full((size,), MARK).to(values.dtype)
    view = seen(memory, numel, layout)
    view.copy_(values.view(view.shape))
    return memory


def seen(memory: Tensor, numel: int, layout: Layout) -> Tensor:
    """The part of ``memory`` that a collective is given: of [77 77 77 a b 77 77 77], ``inside`` is [a b]."""
    if layout == "inside":
        return memory[MARGIN : MARGIN + numel]
    if layout == "strided":
        return memory[::2]
    return memory.view(2, numel // 2).t() if layout == "transposed" else memory
