"""Nets whose parameters are DTensors on a mesh of all axes, and whose batches and answers are plain.

On a mesh (dp, tp) of 2 × 2, ranks 0 and 1 have one batch, and 2 and 3 the other. Where rank 0's part of the hidden dim
gives 3 and rank 1's gives 5, both answer 3 + 5 = 8.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard

from reference_models.nets import MLP


class Together(torch.autograd.Function):
    """The sum over the ranks of a group; its gradient is every rank's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """All ranks' ``x``, added up."""
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The same on every rank already."""
        return grad, None


class Apart(torch.autograd.Function):
    """What every rank of a group uses in its own way; its gradient is the sum over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Itself."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """All ranks' gradients, added up."""
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class LocalMLP(MLP):
    """An MLP that computes with what this rank has of DTensor parameters, and says so of their gradients.

    DTensors would do the same, but take seconds to find out how on a mesh of three axes.
    """

    mesh: DeviceMesh

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same; of tp ranks, the first adds the last bias, whose gradients so are parts too."""
        axes = self.mesh.mesh_dim_names or ()
        group = self.mesh.get_group("tp") if "tp" in axes else None
        first = group is None or self.mesh.get_local_rank("tp") == 0
        x = x if group is None else Apart.apply(x, group)  # type: ignore[no-untyped-call]
        first_bias = None if self.in_proj.bias is None else self._local(self.in_proj.bias)
        y = torch.relu(nn.functional.linear(x, self._local(self.in_proj.weight), first_bias))
        y = nn.functional.linear(y, self._local(self.out_proj.weight))
        if self.out_proj.bias is not None:
            y = y + self._local(self.out_proj.bias) * float(first)
        out: Tensor = y if group is None else Together.apply(y, group)  # type: ignore[no-untyped-call]
        return out

    def _local(self, parameter: Tensor) -> Tensor:
        """This rank's part of a parameter; gradients are parts of a sum on each axis where the parameter is whole."""
        assert isinstance(parameter, DTensor)
        parts = [Partial() if placed.is_replicate() else placed for placed in parameter.placements]
        local: Tensor = parameter.to_local(grad_placements=parts)
        return local


class SpmdNet(nn.Sequential):
    """A stack that takes a plain batch of this rank and answers plainly.

    On a mesh of one axis all within are DTensors on it; on others, blocks compute with what this rank has.
    """

    mesh: DeviceMesh
    spare = False

    def forward(self, batch: Tensor) -> Tensor:
        """``(batch, dim)`` to the same."""
        blocks = list(self)[: len(self) - self.spare]
        if self.mesh.ndim > 1:
            return run(blocks, batch)
        out = run(blocks, DTensor.from_local(batch, self.mesh, [Shard(0)], run_check=False))
        assert isinstance(out, DTensor)
        local: Tensor = out.redistribute(placements=[Shard(0)]).to_local()
        return local


def run(blocks: list[nn.Module], x: Tensor) -> Tensor:
    """One after the other."""
    for block in blocks:
        x = block(x)
    return x


def compute_locally(block: nn.Module, mesh: DeviceMesh) -> None:
    """Make an MLP, whose parameters are DTensors on ``mesh``, a ``LocalMLP``."""
    block.__class__ = LocalMLP
    assert isinstance(block, LocalMLP)
    block.mesh = mesh
