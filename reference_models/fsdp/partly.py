"""Resharding to a smaller mesh after forward: backward then gathers among few neighbours instead of all ranks.

Four ranks, ``reshard_after_forward=2``, rows [1 2 3 4]: after forward ranks 0 and 2 keep [1 2], ranks 1 and 3 keep
[3 4], and backward gathers among 0 1 and among 2 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor.placement_types import Shard

from reference_models.fsdp.collectives import Gathering, Own, Piece, gather
from reference_models.fsdp.comms import AllGather
from reference_models.fsdp.mesh import DataMesh
from reference_models.fsdp.param import ManagedParameter
from reference_models.fsdp.tensor_parallel import Layout


class Partly:
    """What is kept of a group's parameters between forward and backward, and over which mesh."""

    def __init__(self, mesh: DataMesh) -> None:
        self.mesh = mesh
        self._pieces: list[Tensor] = []

    def keep(self, parameters: Sequence[ManagedParameter]) -> None:
        """Copy this rank's stretch of every unsharded parameter, free the rest, and show the stretches."""
        for parameter in parameters:
            if parameter.extension is not None:
                raise NotImplementedError("reshard_after_forward as int is not supported with all-gather extensions")
            if parameter.before is not None:
                raise NotImplementedError(
                    "Resharding to smaller mesh is not supported for DTensor parameters yet: "
                    "use reshard_after_forward=True or False for modules under tensor parallelism"
                )
        with torch.no_grad():
            for parameter in parameters:
                self._pieces.append(self._stretch(parameter).clone())
                parameter.free()
                parameter.register(self._shown(parameter, self._pieces[-1]))

    def _stretch(self, parameter: ManagedParameter) -> Tensor:
        """Equal stretches of the padded whole, one a member of the smaller mesh."""
        return parameter.parts().chunk(self.mesh.shard.size)[self.mesh.shard.rank].reshape(-1)

    def _shown(self, parameter: ManagedParameter, piece: Tensor) -> nn.Parameter:
        cut, member = parameter.cut, self.mesh.shard
        step = cut.parts // member.size * cut.step
        start = min(member.rank * step, cut.shape[cut.dim])
        shape = (*cut.shape[: cut.dim], step, *cut.shape[cut.dim + 1 :])
        blocks = piece.view(-1, *cut.padded_shape).movedim(0, cut.dim).reshape(shape)
        local = blocks.narrow(cut.dim, 0, min(step, cut.shape[cut.dim] - start))
        placements = self.mesh.placements(Shard(cut.dim))
        layout = Layout(self.mesh.mesh, placements, parameter.layout.shape, parameter.layout.stride)
        return nn.Parameter(layout.wrap(local), parameter.sharded.requires_grad)

    def gather(self, device: torch.device, comm: AllGather) -> Gathering | Own:
        """Start gathering among the neighbours."""
        return gather([Piece(piece, piece.dtype) for piece in self._pieces], self.mesh.shard, device, comm)

    def drop(self) -> None:
        """Free what was kept."""
        self._pieces = []
