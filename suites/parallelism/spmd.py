"""Nets whose parameters are DTensors on one mesh of all axes, of which some are named as data axes.

On a mesh ``(dp, tp)`` of 2 × 2 a column-wise weight of eight rows begins with four rows a rank; ``fully_shard`` cuts
what lies whole on dp::

    before    ranks 0, 2: rows 0-3    ranks 1, 3: rows 4-7
    after     rank 0: rows 0, 1    rank 1: rows 4, 5    rank 2: rows 2, 3    rank 3: rows 6, 7
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from harness.worlds.rank import Rank
from suites.kit import programs
from suites.kit.parallel import Mesh, ParallelCase
from suites.kit.programs import apply, gradients, loss_of, steps, whole_mesh
from suites.oracle.situation import Trace
from suites.parallelism.spmd_nets import SpmdNet, compute_locally

FSDP: list[Mesh] = [({"dp": size}, ("dp",), ()) for size in (2, 4, 1)]
DDP: list[Mesh] = [({"dp": size}, (), ("dp",)) for size in (2, 4)]
HYBRID: list[Mesh] = [({"replicate": 2, "shard": 2}, ("shard",), ("replicate",))]
TWO_NAMES: list[Mesh] = [
    ({"dp": 2, "cp": 2}, ("dp", "cp"), ()),
    ({"dp": 2, "cp": 2}, (), ("dp", "cp")),
    ({"replicate": 2, "dp": 2, "cp": 2}, ("dp", "cp"), ("replicate",)),
]
WITH_TP: list[Mesh] = [
    ({"dp": 2, "tp": 2}, ("dp",), ()),
    ({"tp": 2, "dp": 2}, ("dp",), ()),
    ({"dp": 2, "tp": 2}, (), ("dp",)),
    ({"replicate": 2, "shard": 1, "tp": 2}, ("shard",), ("replicate",)),
    ({"replicate": 2, "shard": 2, "tp": 2}, ("shard",), ("replicate",)),
]


@dataclass(frozen=True)
class SpmdCase(ParallelCase):
    """All parameters lie on the mesh of all axes before they are sharded. With ``spare``, the last block is not run."""

    axes: tuple[str, ...] = ("dp",)
    mesh: tuple[int, ...] = (2,)
    spare: bool = False


def distributed(rank: Rank, case: SpmdCase) -> SpmdNet:
    """The net with all parameters on the mesh: cut over tp, and whole on each data axis."""
    mesh, built = whole_mesh(rank, case), case.build()
    net = SpmdNet(*built)
    net.mesh, net.spare = mesh, case.spare
    for block in net if mesh.ndim > 1 else []:
        compute_locally(block, mesh)
    for prefix, module in net.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            dim = case.cut_by_tp(f"{prefix}.{name}")
            cut: Placement = Replicate() if dim is None else Shard(dim)
            placed = [cut if axis == "tp" else Replicate() for axis in case.axes]
            whole = distribute_tensor(parameter.detach(), mesh, placed, src_data_rank=None)
            setattr(module, name, nn.Parameter(whole))
    return net


def data_axes(rank: Rank, shard: tuple[str, ...], replicate: tuple[str, ...]) -> Any:
    """What names the data axes: one name by itself, several as a tuple."""
    make = rank.implementation.data_parallel_mesh_dims
    assert make is not None
    one, other = ((axes if len(axes) > 1 else axes[0]) if axes else None for axes in (shard, replicate))
    return make(shard=one, replicate=other)


def sharded(rank: Rank, case: SpmdCase, net: SpmdNet | None = None, **options: Any) -> SpmdNet:
    """Shard the case's blocks, then the root, by the names of the data axes."""
    options.setdefault("mesh", whole_mesh(rank, case))
    options.setdefault("dp_mesh_dims", data_axes(rank, case.shard, case.replicate))
    if case.shard:
        options.setdefault("reshard_after_forward", case.reshard_after_forward)
    net = net or distributed(rank, case)
    apply(rank, case, net, **options)
    return net


def layouts(rank: Rank, case: SpmdCase) -> dict[str, Any]:
    """How every parameter lies on the mesh, what this rank holds, and what all ranks put together."""
    return programs.layouts(sharded(rank, case), whole_mesh(rank, case))


def train_spmd(rank: Rank, case: SpmdCase) -> Trace:
    """Shard, then train; ranks of one tp group see the same batch."""
    return steps(rank, case, sharded(rank, case))


def train_in_groups(rank: Rank, case: SpmdCase) -> dict[str, Any]:
    """Train with shards over smaller groups; or how that was refused."""
    try:
        return {"trace": train_spmd(rank, case)}
    except (NotImplementedError, ValueError) as error:
        return {"refused": str(error)}


def unused(rank: Rank, case: SpmdCase) -> dict[str, Any]:
    """One backward in which unused parameters are reduced too; the gradients."""
    net = sharded(rank, case)
    net.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    loss_of(rank, case, net).backward()
    return dict(gradients(net))
