"""One all-gather, one reduce-scatter, one all-reduce for a whole group of parameters.

Two ranks, parameters a = [1 2 3] and b = [7 8]; parts are padded to 2 and 1 numbers::

    packed      rank 0: a [1 2]  b [7]        rank 1: a [3 0]  b [8]
    gathered    [1 2 7 | 3 0 8]               a row a rank, a stretch of columns a parameter
    a           columns 0-1, row by row: 1 2 3 0, of which the first three are a

Reducing goes the same way back: gradients are laid out as rows, and each rank gets the mean of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from reference_models.fsdp.communication.comms import AllGather, ReduceScatter, returns_early, under_way
from reference_models.fsdp.layout.mesh import Axis, DataMesh


class Piece(NamedTuple):
    """Flat numbers that a rank sends in a gather, and the dtype in which they travel."""

    numbers: Tensor
    dtype: torch.dtype


class Parcel:
    """What a rank sends in one gather: numbers of one dtype; bytes, if its pieces travel in several."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.dtypes = [dtype for _, dtype in pieces]
        self.is_mixed = len(set(self.dtypes)) != 1
        self.dtype = torch.uint8 if self.is_mixed else self.dtypes[0]
        self.sizes = [numbers.numel() * dtype.itemsize // self.dtype.itemsize for numbers, dtype in pieces]
        self.numel = sum(self.sizes)
        self._numbers = [numbers for numbers, _ in pieces]

    def write(self, row: Tensor) -> None:
        """Write the pieces, each in its dtype, one after the other."""
        sent = (
            [numbers.to(dtype).view(torch.uint8) for numbers, dtype in self.pieces] if self.is_mixed else self._numbers
        )
        torch.cat(sent, out=row)  # casts, too


@dataclass
class Gathering:
    """An all-gather under way: ``work`` to wait for, then ``rows`` holds all ranks' pieces, a row a rank."""

    work: Any
    rows: Tensor
    sizes: list[int]
    dtypes: list[torch.dtype]

    def columns(self) -> Iterator[Tensor]:
        """Wait; then every piece as all ranks gave it, ``(ranks, numel)``, in the order in which they were sent."""
        if self.work is not None:
            self.work.wait()
        for column, dtype in zip(torch.split_with_sizes(self.rows, self.sizes, 1), self.dtypes, strict=True):
            # Bytes are copied, since a stretch of them need not begin where a number of this dtype may.
            yield column if column.dtype == dtype else column.clone(memory_format=torch.contiguous_format).view(dtype)


@dataclass
class OwnPieces:
    """What stands for a gathering where there is one rank: its own pieces."""

    pieces: Sequence[Piece]

    def columns(self) -> Iterator[Tensor]:
        """Every piece, ``(1, numel)``."""
        for numbers, _ in self.pieces:
            yield numbers.view(1, -1)


def gather(parcel: Parcel, axis: Axis, device: torch.device, comm: AllGather, async_op: bool) -> Gathering | OwnPieces:
    """Start gathering parcels, each piece as long on every rank.

    With ``async_op`` a user's collective, too, may return before all is there.
    """
    if axis.size == 1:
        return OwnPieces(parcel.pieces)
    flat = comm.allocate((axis.size * parcel.numel,), dtype=parcel.dtype, device=device)
    rows = flat.view(axis.size, -1)
    own = rows[axis.rank]
    parcel.write(own)
    answer = comm(flat, own, axis.group, async_op or returns_early(comm))
    return Gathering(under_way(answer), rows, parcel.sizes, parcel.dtypes)


@dataclass(frozen=True)
class Division:
    """How a sum over ranks becomes a mean: divided before and after it, or by the collective itself."""

    before: float
    after: float
    op: Any = dist.ReduceOp.SUM


def division(size: int, factor: float | None, dtype: torch.dtype, force_sum: bool) -> Division:
    """Divide by ``factor``, or by ``size``, the number of ranks.

    Half precision overflows in a sum over many ranks and underflows if it is divided by all of them before, so it is
    divided by about the root before and by the rest after; powers of two, so that no rounding is added.
    """
    if factor is None and not force_sum and dtype != torch.float16:
        return Division(1.0, 1.0, dist.ReduceOp.AVG)
    whole = float(size if factor is None else factor)
    if dtype != torch.float16:
        return Division(1.0, whole)
    before = 1.0
    while before * before < whole:
        before *= 2.0
    return Division(before, whole / before)


@dataclass(eq=False)
class Reduction:
    """The reduction of one group's gradients, in stages, so that communication runs while backward goes on.

    ``start``: reduce-scatter started. ``advance``: that is done, all-reduce started. ``finish``: the mean is in
    ``part``, this rank's row. All of it is work of the current stream, which is a lane's; ``rows`` must live until that
    is past the reduce-scatter, on a CPU until ``advance``.
    """

    sizes: dict[Any, int]  # how many numbers of a row belong to each parameter, in the order of the row
    mesh: DataMesh
    divide: Division
    comm: ReduceScatter
    is_whole: bool  # whether it goes on to the mean over all ranks, or leaves the sum of one replica
    earlier: Reduction | None  # passes of these parameters, or some, that were not all-reduced: their sum is added
    at_once: bool  # whether nothing is left to wait for when it has been started
    part: Tensor = field(init=False)
    _work: Any = None
    _advanced: bool = False

    def start(self, rows: Tensor) -> None:
        """Start reducing ``rows``, ``(ranks, sum of the sizes)``, which are changed."""
        if self.divide.before != 1.0:
            rows.div_(self.divide.before)
        axis, on_stream = self.mesh.shard, rows.device.type != "cpu"
        if axis.size == 1:
            self.part = rows[0].clone() if on_stream else rows[0]  # memory of the lane, to be freed in its order
        else:
            self.part = self.comm.allocate((rows.size(1),), dtype=rows.dtype, device=rows.device)
            early = returns_early(self.comm) and not on_stream and not self.at_once
            self._work = under_way(self.comm(self.part, rows.view(-1), axis.group, self.divide.op, early))
        if self._work is None:
            self.advance()

    def advance(self) -> None:
        """Wait for the reduce-scatter and start the all-reduce, if there is one."""
        if self._advanced:
            return
        self._advanced = True
        self._wait()
        if self.earlier is not None:
            self.part.add_(self._row_of(self.earlier))
            self.earlier = None
        if self.is_whole and self.mesh.replicate.size > 1:
            group, early = self.mesh.replicate.group, not self.at_once
            self._work = dist.all_reduce(self.part, op=self.divide.op, group=group, async_op=early)

    def _row_of(self, earlier: Reduction) -> Tensor:
        """An earlier sum in the order of ``sizes``; zeros for what it has not."""
        row = earlier.finish()
        if len(earlier.sizes) == len(self.sizes):
            return row
        parts = earlier.parts()
        return torch.cat([parts[key] if key in parts else row.new_zeros(size) for key, size in self.sizes.items()])

    @property
    def is_there(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._advanced and self._work is None

    def wait(self) -> None:
        """Wait for all communication; what has been handed out already stays as it is."""
        self.advance()
        self._wait()

    def finish(self) -> Tensor:
        """Once: wait for all of it; this rank's part of the mean."""
        self.wait()
        if self.is_whole and self.divide.after != 1.0:
            self.part.div_(self.divide.after)
        return self.part

    def parts(self, dtype: torch.dtype | None = None) -> dict[Any, Tensor]:
        """The part of each parameter, flat, once all is finished; cast, if to one dtype, at once."""
        part = self.part if dtype is None or dtype == self.part.dtype else self.part.to(dtype)
        return dict(zip(self.sizes, torch.split_with_sizes(part, list(self.sizes.values())), strict=True))

    def _wait(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None
