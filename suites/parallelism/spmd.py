"""Nets whose parameters are DTensors on one mesh of all axes, of which some are named as data axes.

On a mesh ``(dp, tp)`` of 2 × 2 a column-wise weight of eight rows begins with four rows a rank; ``fully_shard`` cuts
what lies whole on dp::

    before    ranks 0, 2: rows 0-3    ranks 1, 3: rows 4-7
    after     rank 0: rows 0, 1    rank 1: rows 4, 5    rank 2: rows 2, 3    rank 3: rows 6, 7
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from harness.trial import most_ranks
from harness.worlds.rank import Rank
from suites.kit.cases import Block, Stack, TrainingCase
from suites.kit.parallel import cut_by_tp
from suites.kit.programs import gradients, spread, steps
from suites.kit.strategies import training_cases
from suites.oracle.layout import local, shard
from suites.oracle.situation import Trace
from suites.parallelism.spmd_nets import SpmdNet, compute_locally

#: The axes of a mesh with their sizes, those that shard, and those that replicate; tp is what is left.
Plan = tuple[tuple[tuple[str, int], ...], tuple[str, ...], tuple[str, ...]]
FSDP: list[Plan] = [((("dp", 2),), ("dp",), ()), ((("dp", 4),), ("dp",), ()), ((("dp", 1),), ("dp",), ())]
DDP: list[Plan] = [((("dp", 2),), (), ("dp",)), ((("dp", 4),), (), ("dp",))]
HYBRID: list[Plan] = [((("replicate", 2), ("shard", 2)), ("shard",), ("replicate",))]
TWO_NAMES: list[Plan] = [
    ((("dp", 2), ("cp", 2)), ("dp", "cp"), ()),
    ((("dp", 2), ("cp", 2)), (), ("dp", "cp")),
    ((("replicate", 2), ("dp", 2), ("cp", 2)), ("dp", "cp"), ("replicate",)),
]
WITH_TP: list[Plan] = [
    ((("dp", 2), ("tp", 2)), ("dp",), ()),
    ((("tp", 2), ("dp", 2)), ("dp",), ()),
    ((("dp", 2), ("tp", 2)), (), ("dp",)),
    ((("replicate", 2), ("shard", 1), ("tp", 2)), ("shard",), ("replicate",)),
    ((("replicate", 2), ("shard", 2), ("tp", 2)), ("shard",), ("replicate",)),
]


@dataclass(frozen=True)
class SpmdCase(TrainingCase):
    """MLPs on a mesh of ``axes`` with ``sizes``, of which those in ``shard`` and ``replicate`` are data axes.

    With ``spare``, the last block is not run.
    """

    axes: tuple[str, ...] = ("dp",)
    sizes: tuple[int, ...] = (2,)
    shard: tuple[str, ...] = ("dp",)
    replicate: tuple[str, ...] = ()
    spare: bool = False

    @property
    def tp(self) -> int:
        """How many ranks share each layer."""
        return dict(zip(self.axes, self.sizes, strict=True)).get("tp", 1)

    @property
    def data_ranks(self) -> int:
        """How many batches there are."""
        return self.world_size // self.tp

    def index(self, number: int, axes: tuple[str, ...]) -> int:
        """The place of a rank on some axes together, the first of them counting most."""
        place = 0
        for axis in axes:
            at = self.axes.index(axis)
            place = place * self.sizes[at] + number // math.prod(self.sizes[at + 1 :]) % self.sizes[at]
        return place

    def data_rank(self, rank: int) -> int:
        """Which batch a rank sees."""
        return self.index(rank, tuple(axis for axis in self.axes if axis != "tp"))

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What rank ``rank`` holds of a parameter."""
        dim = cut_by_tp(name.partition(".")[2])
        left = full if dim is None or self.tp == 1 else shard(full, self.tp, self.index(rank, ("tp",)), dim)
        shards = math.prod(size for axis, size in zip(self.axes, self.sizes, strict=True) if axis in self.shard)
        return shard(left, shards, self.index(rank, self.shard))

    def words(self, name: str) -> list[str]:
        """The placements of a parameter in words."""
        dim = cut_by_tp(name.partition(".")[2])
        tp = "Replicate()" if dim is None else f"Shard({dim})"
        return [tp if axis == "tp" else "Shard(0)" if axis in self.shard else "Replicate()" for axis in self.axes]


@st.composite
def spmd_cases(draw: st.DrawFn, /, plans: list[Plan], **fixed: Any) -> SpmdCase:
    """MLPs of integers under one of the plans; tp divides the hidden dim, which is not 1.

    In float32 one block is all that stays exact (see ``tolerance.py``).
    """
    sizes = [math.prod(size for _, size in plan[0]) for plan in plans]
    fitting = [plan for plan, size in zip(plans, sizes, strict=True) if size <= max(4, most_ranks())]
    axes, shards, replicas = draw(st.sampled_from(fitting))
    dims = st.tuples(st.integers(1, 5), st.integers(1, 3)).filter(lambda d: d[0] * d[1] >= 2 and d[0] * d[1] % 2 == 0)
    dim, multiplier = draw(dims)
    dtype = draw(st.sampled_from(["float64", "float32"]))
    blocks: list[tuple[Block, ...]] = [("mlp",), ("mlp", "mlp")]
    net = Stack(
        dim, draw(st.sampled_from(blocks[: 2 if dtype == "float64" else 1])), multiplier, bias=draw(st.booleans())
    )
    reshard = draw(st.sampled_from([True, None, False]))
    world_size = math.prod(size for _, size in axes)
    fixed = {"net": net, "dtype": dtype, "reshard_after_forward": reshard, **fixed}
    spare = fixed.pop("spare", False)
    case = draw(training_cases(exact=True, world_size=world_size, **fixed))
    own = {name: getattr(case, name) for name in TrainingCase.__dataclass_fields__}
    names, counts = (tuple(part) for part in zip(*axes, strict=True))
    return SpmdCase(**own, axes=names, sizes=counts, shard=shards, replicate=replicas, spare=spare)


def mesh_of(rank: Rank, case: SpmdCase) -> DeviceMesh:
    """The mesh of all axes."""
    return rank.mesh(case.sizes, case.axes)


def distributed(rank: Rank, case: SpmdCase) -> SpmdNet:
    """The net with all parameters on the mesh: cut over tp, and whole on each data axis."""
    mesh, built = mesh_of(rank, case), case.build()
    net = SpmdNet(*built)
    net.mesh, net.spare = mesh, case.spare
    for block in net if mesh.ndim > 1 else []:
        compute_locally(block, mesh)
    for prefix, module in net.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            dim = cut_by_tp(f"{prefix}.{name}".partition(".")[2])
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
    net = net or distributed(rank, case)
    fully_shard = rank.implementation.fully_shard
    assert fully_shard is not None
    options.setdefault("mesh", mesh_of(rank, case))
    options.setdefault("dp_mesh_dims", data_axes(rank, case.shard, case.replicate))
    if case.shard:
        options.setdefault("reshard_after_forward", case.reshard_after_forward)
    for module in [*(net[place] for place in case.sharded), net]:
        fully_shard(module, **options)
    return net


def layouts(rank: Rank, case: SpmdCase) -> dict[str, Any]:
    """How every parameter lies on the mesh, what this rank holds, and what all ranks put together."""
    net, mesh = sharded(rank, case), mesh_of(rank, case)
    return {
        name: {**spread(p, mesh), "local": local(p), "full": p.full_tensor().detach()}  # type: ignore[attr-defined]
        for name, p in net.named_parameters()
    }


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
    net, number = sharded(rank, case), case.data_rank(rank.number)
    net.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    case.loss(net(case.inputs(0, number).to(rank.device)), 0, number).backward()
    return dict(gradients(net))
