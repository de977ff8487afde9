"""Nets whose parameters are DTensors on one mesh of all axes, of which some are named as data axes.

On a mesh ``(dp, tp)`` of 2 × 2 a column-wise weight of eight rows begins with four rows a rank; ``fully_shard`` cuts
what lies whole on dp::

    before    ranks 0, 2: rows 0-3    ranks 1, 3: rows 4-7
    after     rank 0: rows 0, 1    rank 1: rows 4, 5    rank 2: rows 2, 3    rank 3: rows 6, 7
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from harness.worlds.rank import Rank
from suites.kit.parallel import Mesh, ParallelCase, lay_on
from suites.kit.programs import ShardedStack, apply, whole_mesh
from suites.oracle.situation import UNUSED_TOO
from suites.parallelism.spmd_nets import SpmdNet, compute_locally

FSDP: list[Mesh] = [({"dp": size}, ("dp",), ()) for size in (2, 4, 1)]
DDP: list[Mesh] = [({"dp": size}, (), ("dp",)) for size in (2, 4)]
HYBRID: list[Mesh] = [
    ({"replicate": 2, "shard": 2}, ("shard",), ("replicate",)),
    ({"shard": 2, "replicate": 2}, ("shard",), ("replicate",)),
]
TWO_NAMES: list[Mesh] = [
    ({"dp": 2, "cp": 2}, ("dp", "cp"), ()),
    ({"dp": 2, "cp": 2}, (), ("dp", "cp")),
    ({"replicate": 2, "dp": 2, "cp": 2}, ("dp", "cp"), ("replicate",)),
    ({"dp": 2, "cp": 2, "replicate": 2}, ("dp", "cp"), ("replicate",)),
    ({"pod": 1, "node": 2, "dp": 2, "cp": 1}, ("dp", "cp"), ("pod", "node")),
]
WITH_TP: list[Mesh] = [
    ({"dp": 2, "tp": 2}, ("dp",), ()),
    ({"tp": 2, "dp": 2}, ("dp",), ()),
    ({"dp": 2, "tp": 2}, (), ("dp",)),
    ({"replicate": 2, "shard": 1, "tp": 2}, ("shard",), ("replicate",)),
    ({"replicate": 2, "shard": 2, "tp": 2}, ("shard",), ("replicate",)),
    ({"shard": 2, "tp": 2, "replicate": 2}, ("shard",), ("replicate",)),
]


@dataclass(frozen=True)
class SpmdCase(ParallelCase):
    """All parameters lie on the mesh of all axes before they are sharded.

    With ``spare``, the last block is not run, and its parameters are reduced all the same. With ``replicates``, it is
    ``replicate`` that is called. ``wrong`` is what the caller gets wrong, if anything.
    """

    axes: tuple[str, ...] = ("dp",)
    mesh: tuple[int, ...] = (2,)
    spare: bool = False
    replicates: bool = False
    wrong: str = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """Training, after what is set if a block is to spare."""
        return (*[UNUSED_TOO] * self.spare, *super().actions)

    def build(self) -> nn.Sequential:
        """The net; a block that is to spare does nothing."""
        net = super().build()
        if self.spare:
            vars(net[-1])["forward"] = lambda x: x
        return net


class Spmd(ShardedStack):
    """The net of a case, sharded by the names of the data axes, on one rank; ranks of one tp group see one batch."""

    def made(self) -> Any:
        """Blocks, then the root."""
        rank, case = self.rank, self.case
        options = {"mesh": whole_mesh(rank, case), "dp_mesh_dims": data_axes(rank, case.shard, case.replicate)}
        if case.shard and not case.replicates:
            options["reshard_after_forward"] = case.reshard_after_forward
        net = case.build() if case.wrong == "plain parameters" else distributed(rank, case)
        function = rank.implementation.replicate_fsdp if case.replicates else None
        return apply(rank, case, net, function, **{**options, **(wrongly(rank, case, net) if case.wrong else {})})


def distributed(rank: Rank, case: SpmdCase) -> SpmdNet:
    """The net with all parameters on the mesh: cut over tp, and whole on each data axis."""
    mesh, net = whole_mesh(rank, case), SpmdNet(*case.build())
    net.mesh = mesh
    for block in net if mesh.ndim > 1 else []:
        compute_locally(block, mesh)
    lay_on(mesh, case, net)
    return net


def data_axes(rank: Rank, shard: tuple[str, ...], replicate: tuple[str, ...]) -> Any:
    """What names the data axes: one name by itself, several as a tuple."""
    make = rank.implementation.data_parallel_mesh_dims
    assert make is not None
    one, other = ((axes if len(axes) > 1 else axes[0]) if axes else None for axes in (shard, replicate))
    return make(shard=one, replicate=other)


def wrongly(rank: Rank, case: SpmdCase, net: Any) -> dict[str, Any]:
    """The options that are given wrongly; or the first weight is put where it must not lie."""
    given: dict[str, Callable[[], dict[str, Any]]] = {
        "no name": lambda: {"dp_mesh_dims": data_axes(rank, (), ())},
        "unknown name": lambda: {"dp_mesh_dims": data_axes(rank, ("elsewhere",), ())},
        "nameless mesh": lambda: {"mesh": rank.mesh(case.mesh)},
        "placed replicas": lambda: {"shard_placement_fn": lambda parameter: Shard(0)},
    }
    mesh, placed = whole_mesh(rank, case), [Replicate() for _ in case.axes]
    elsewhere: dict[str, Callable[[], tuple[DeviceMesh, Sequence[Placement]]]] = {
        "on another mesh": lambda: (rank.mesh(case.mesh, tuple(f"other_{axis}" for axis in case.axes)), placed),
        "cut already": lambda: (mesh, [Shard(0) for _ in placed]),
    }
    if case.wrong in elsewhere:
        layer = net[0].in_proj
        local = layer.weight.detach().to_local()
        layer.weight = nn.Parameter(DTensor.from_local(local, *elsewhere[case.wrong](), run_check=False))
    return given.get(case.wrong, dict)()
