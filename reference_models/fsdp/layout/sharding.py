"""How one tensor is cut into equal, padded parts: arithmetic only, no ranks and no communication.

Five rows of one number over two ranks, in parts of ceil(5 / 2) = 3 rows, the last part padded::

    tensor  [1 2 3 4 5]     rank 0 holds [1 2 3]    rank 1 holds [4 5], stored as [4 5 0]
    joined  [1 2 3 4 5 0]   the parts end to end; the first five numbers are the tensor again

Along dim 0 a part is a stretch of the tensor's memory, so padding is all at the end. Along another dim the ranks must
divide the dim, and parts are interleaved in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from reference_models.fsdp.errors import NotAllowed


@dataclass(frozen=True)
class Cut:
    """A tensor of ``shape`` cut along ``dim`` into ``parts`` parts of equal padded size."""

    shape: torch.Size
    dim: int
    parts: int

    @cached_property
    def step(self) -> int:
        """Rows of a padded part, ``ceil(rows / parts)``."""
        return -(-self.shape[self.dim] // self.parts)

    @cached_property
    def padded_shape(self) -> torch.Size:
        """The shape of a part with its padding."""
        return self._with_rows(self.step)

    @cached_property
    def padded_numel(self) -> int:
        """How many numbers a part has with its padding."""
        return prod(self.padded_shape)

    def rows(self, part: int) -> tuple[int, int]:
        """Where a part begins, and how many rows it has without padding."""
        start = min(part * self.step, self.shape[self.dim])
        return start, min(self.step, self.shape[self.dim] - start)

    def take(self, tensor: Tensor, part: int) -> Tensor:
        """A part of ``tensor`` without padding, as a view."""
        return tensor.narrow(self.dim, *self.rows(part))

    def padded(self, own: Tensor) -> Tensor:
        """A part's numbers in a new flat tensor of ``padded_numel`` numbers, zeros behind them."""
        flat = own.new_zeros(self.padded_numel)
        self.unpadded(flat, own.size(self.dim)).copy_(own)
        return flat

    def unpadded(self, flat: Tensor, rows: int) -> Tensor:
        """The first ``rows`` rows of a padded flat part, as a view in the part's shape."""
        padded = flat.view(*self.padded_shape)  # twice as fast as with the shape itself
        return padded if rows == self.step else padded.narrow(self.dim, 0, rows)

    @cached_property
    def joined_shape(self) -> torch.Size:
        """The shape in which flat memory of all parts' numbers takes what ``joined`` gives."""
        if self.dim == 0:
            return torch.Size((self.parts, self.padded_numel))
        return torch.Size((*self.shape[: self.dim], self.parts, self.step, *self.shape[self.dim + 1 :]))

    def joined(self, parts: Tensor) -> Tensor:
        """The parts, ``(parts, padded_numel)``, as a view in the order of one padded tensor's memory."""
        return parts if self.dim == 0 else parts.unflatten(1, self.padded_shape).movedim(0, self.dim)

    def stacked(self, tensor: Tensor) -> Tensor:
        """``tensor`` of ``shape`` such that cutting it along dim 0 gives the parts."""
        if self.dim == 0:
            return tensor
        blocks: Tensor = tensor.unflatten(self.dim, (self.parts, self.step))
        return blocks.movedim(self.dim, 0).contiguous()

    def _with_rows(self, rows: int) -> torch.Size:
        return torch.Size((*self.shape[: self.dim], rows, *self.shape[self.dim + 1 :]))


def check_cut(shape: torch.Size, dim: int, parts: int) -> Cut:
    """The cut that a user asked for. Raises NotAllowed or NotImplementedError that says why it cannot be made."""
    wanted = dim + len(shape) if dim < 0 else dim
    if not 0 <= wanted < len(shape):
        raise NotAllowed(
            f"Shard dim {dim} is invalid for {len(shape)}D tensor of shape {tuple(shape)}: name one it has"
        )
    if wanted > 0 and shape[wanted] % parts != 0:
        raise NotImplementedError(
            f"FSDP does not support uneven sharding on dim {wanted}: {tuple(shape)} over {parts} ranks; "
            "shard on dim 0, which may be uneven, or on a dim that the ranks divide"
        )
    return Cut(shape, wanted, parts)
