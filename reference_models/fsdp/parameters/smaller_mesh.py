"""Resharding to a smaller mesh after forward: backward then gathers among few neighbours instead of all ranks.

Four ranks, ``reshard_after_forward=2``, rows [1 2 3 4]: after forward ranks 0 and 2 keep [1 2], ranks 1 and 3 keep
[3 4], and backward gathers among 0 1 and among 2 3. Of rows [1 2 3 4 5] they keep [1 2 3] and [4 5].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor.placement_types import Shard

from reference_models.fsdp.communication.collectives import Gathering, OwnPieces, Parcel, Piece, gather
from reference_models.fsdp.communication.comms import AllGather
from reference_models.fsdp.layout.mesh import DataMesh
from reference_models.fsdp.layout.sharding import Cut
from reference_models.fsdp.layout.tensor_parallel import Layout
from reference_models.fsdp.parameters.param import ManagedParameter


class PostForwardShards:
    """What is kept of a group's parameters between forward and backward, and over which mesh."""

    def __init__(self, mesh: DataMesh, parameters: Sequence[ManagedParameter], frees: bool) -> None:
        """Copy this rank's rows of every unsharded parameter, free it if asked for, and show the rows."""
        self.mesh = mesh
        self._pieces: list[Tensor] = []
        for parameter in parameters:
            if parameter.extension is not None:
                raise NotImplementedError("reshard_after_forward as int is not supported with all-gather extensions")
            if parameter.before is not None:
                raise NotImplementedError(
                    "reshard_after_forward as int expects plain parameters, got a DTensor: "
                    "use True or False for modules under tensor parallelism"
                )
        with torch.no_grad():
            for parameter in parameters:
                cut = self.cut(parameter)
                self._pieces.append(cut.padded(cut.take(parameter.whole(), self.mesh.shard.rank)))
                if frees:
                    parameter.free()
                parameter.register(self._shown(parameter, self._pieces[-1]))

    def cut(self, parameter: ManagedParameter) -> Cut:
        """How members of the smaller mesh cut a parameter."""
        return Cut(parameter.cut.shape, parameter.cut.dim, self.mesh.shard.size)

    def _shown(self, parameter: ManagedParameter, piece: Tensor) -> nn.Parameter:
        cut = self.cut(parameter)
        local = cut.unpadded(piece, cut.rows(self.mesh.shard.rank)[1])
        placements = self.mesh.placements(Shard(cut.dim))
        layout = Layout(self.mesh.mesh, placements, parameter.layout.shape, parameter.layout.stride)
        return nn.Parameter(layout.wrap(local), parameter.sharded.requires_grad)

    def gather(self, device: torch.device, comm: AllGather, async_op: bool) -> Gathering | OwnPieces:
        """Start gathering among the neighbours."""
        parcel = Parcel([Piece(piece, piece.dtype) for piece in self._pieces])
        return gather(parcel, self.mesh.shard, device, comm, async_op)
