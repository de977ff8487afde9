"""Nets whose parameters are DTensors on a mesh of all axes, and whose batches and answers are plain.

On a mesh (dp, tp) of 2 × 2, ranks 0 and 1 have one batch, and 2 and 3 the other. Where rank 0's part of the hidden dim
gives 3 and rank 1's gives 5, both answer 3 + 5 = 8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from reference_models.nets import MLP


class LocalMLP(MLP):
    """An MLP that computes with what this rank has of DTensor parameters, and says so of their gradients.

    DTensors would do the same, but take seconds to find out how on a mesh of three axes.
    """

    mesh: DeviceMesh

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same; of tp ranks, the first adds the last bias, whose gradients so are parts too."""
        tp = self.mesh["tp"] if "tp" in (self.mesh.mesh_dim_names or ()) else None
        if tp is not None:  # each rank uses it in its own way, so gradients are parts of a sum
            x = DTensor.from_local(x, tp, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        first = tp is None or tp.get_local_rank() == 0
        first_bias = None if self.in_proj.bias is None else self._local(self.in_proj.bias)
        y = torch.relu(nn.functional.linear(x, self._local(self.in_proj.weight), first_bias))
        y = nn.functional.linear(y, self._local(self.out_proj.weight))
        if self.out_proj.bias is not None:
            y = y + self._local(self.out_proj.bias) * float(first)
        return y if tp is None else DTensor.from_local(y, tp, [Partial()], run_check=False).full_tensor()

    def _local(self, parameter: Any) -> Tensor:
        """This rank's part of a parameter; gradients are parts of a sum on each axis where the parameter is whole."""
        parts = [Partial() if placed.is_replicate() else placed for placed in parameter.placements]
        local: Tensor = parameter.to_local(grad_placements=parts)
        return local


class SpmdNet(nn.Sequential):
    """A stack that takes a plain batch of this rank and answers plainly.

    On a mesh of one axis all within are DTensors on it; on others, blocks compute with what this rank has.
    """

    mesh: DeviceMesh

    def forward(self, batch: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        if self.mesh.ndim > 1:
            return super().forward(batch)  # type: ignore[no-untyped-call]
        whole: Any = DTensor.from_local(batch, self.mesh, [Shard(0)], run_check=False)
        out = super().forward(whole)  # type: ignore[no-untyped-call]
        return out.redistribute(placements=[Shard(0)]).to_local()


def compute_locally(block: nn.Module, mesh: DeviceMesh) -> None:
    """Make an MLP, whose parameters are DTensors on ``mesh``, a ``LocalMLP``."""
    block.__class__ = LocalMLP
    assert isinstance(block, LocalMLP)
    block.mesh = mesh
