"""Nets on meshes of several axes: which part of a parameter a rank holds, what is drawn, and tensor parallelism.

A column-wise weight of 8 rows on a mesh of dp 2 and tp 2: tp cuts it first, then dp cuts what tp left::

    dp 0: rows 0, 1 (tp 0) and 4, 5 (tp 1)    dp 1: rows 2, 3 (tp 0) and 6, 7 (tp 1)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harness.trial import most_ranks
from harness.worlds.rank import Rank
from suites.kit.cases import CaseOnMesh, Stack, TrainingCase, as_case
from suites.kit.hsdp import RESHARDS
from suites.kit.programs import whole_mesh
from suites.kit.strategies import training_cases
from suites.oracle.layout import shard

P = TypeVar("P", bound="ParallelCase")
#: The axes of a mesh with their sizes, those that shard, and those that replicate.
Mesh = tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]
FLAT: list[Mesh] = [({"dp": dp, "tp": tp}, ("dp",), ()) for dp, tp in [(2, 2), (2, 2), (1, 4), (1, 2), (2, 1), (4, 1)]]
#: The first needs a world of eight ranks, as threads have it.
HYBRID: list[Mesh] = [
    ({"replicate": replicas, "shard": shards, "tp": tp}, ("shard",), ("replicate",))
    for replicas, shards, tp in [(2, 2, 2), (2, 1, 2), (1, 2, 2), (2, 2, 1)]
]


@dataclass(frozen=True)
class ParallelCase(TrainingCase):
    """MLPs on a ``mesh`` of named ``axes``: those in ``shard`` cut parameters, those in ``replicate`` copy them.

    Ranks that differ on other axes alone see one batch; if ``tp`` is among these, they share each layer over all of
    them.
    """

    axes: tuple[str, ...] = ("dp", "tp")
    shard: tuple[str, ...] = ("dp",)
    replicate: tuple[str, ...] = ()

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Those that shard or replicate, in the order of the mesh."""
        return tuple(axis for axis in self.axes if axis in (*self.shard, *self.replicate))

    @property
    def tp_axes(self) -> tuple[str, ...]:
        """Those over which ranks share each layer, all cutting the same dim."""
        return tuple(axis for axis in self.axes if axis not in self.data_axes) if "tp" in self.axes else ()

    def count(self, *axes: str) -> int:
        """How many places there are on these axes together."""
        sizes = dict(zip(self.axes, self.mesh or (self.world_size,), strict=True))
        return math.prod(sizes.get(axis, 1) for axis in axes)

    def place(self, rank: int, *axes: str) -> int:
        """A rank's place on these axes together, the first of them counting most."""
        place = 0
        for axis in axes:
            at = self.axes.index(axis)
            place = place * self.count(axis) + rank // self.count(*self.axes[at + 1 :]) % self.count(axis)
        return place

    @property
    def shards(self) -> int:
        """Into how many parts data axes cut a parameter."""
        return self.count(*self.shard)

    @property
    def data_ranks(self) -> int:
        """How many batches there are."""
        return self.count(*self.data_axes)

    def data_rank(self, rank: int) -> int:
        """Which batch a rank sees."""
        return self.place(rank, *self.data_axes)

    def cut_by_tp(self, name: str) -> int | None:
        """The dim that tensor parallelism cuts; None where every tp rank holds the whole."""
        layer = ".".join(name.split(".")[-2:])
        return {"in_proj.weight": 0, "in_proj.bias": 0, "out_proj.weight": 1}.get(layer) if self.tp_axes else None

    def cut_by_data(self, name: str) -> int:
        """The dim that the axes that shard cut."""
        return 0

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter."""
        dim = self.cut_by_tp(name)
        left = full if dim is None else shard(full, self.count(*self.tp_axes), self.place(rank, *self.tp_axes), dim)
        return shard(left, self.shards, self.place(rank, *self.shard), self.cut_by_data(name))

    def placements(self, name: str) -> list[str]:
        """The placements of a parameter in words."""
        cuts = dict.fromkeys(self.shard, self.cut_by_data(name))
        if (dim := self.cut_by_tp(name)) is not None:
            cuts.update(dict.fromkeys(self.tp_axes, dim))
        return [f"Shard({cuts[axis]})" if axis in cuts else "Replicate()" for axis in self.axes]


@st.composite
def parallel_cases(
    draw: st.DrawFn,
    /,
    meshes: Sequence[Mesh] = FLAT,
    kind: type[Any] = ParallelCase,
    exact: bool = False,
    even: bool = True,
    multiple: int = 1,
    blocks: Sequence[str] = ("mlp", "buffer"),
    **fixed: Any,
) -> Any:
    """Cases of a kind on one of these meshes; dims are multiples of a number, which data axes need not divide.

    Where tensor parallelism trains, its own operations ask for a hidden dim that is not 1 and that it divides; unless
    ``even``, it leaves no rank without rows. In exact cases two blocks need float64 (see ``training_cases``).
    """
    sizes, sharding, copying = draw(st.sampled_from([mesh for mesh in meshes if ranks_of(mesh) <= most_ranks()]))
    widest, fits = (5 if exact else 9), divides if even else full_parts
    pairs = st.tuples(st.sampled_from(range(multiple, widest + 1, multiple)), st.integers(1, 3))
    dim, multiplier = draw(pairs.filter(lambda dims: fits(dims, sizes.get("tp", 1))))
    dtype = fixed.get("dtype") or draw(st.sampled_from(["float64", "float32"]))
    most = 3 if not exact else 2 if dtype == "float64" else 1
    chosen: Any = draw(st.lists(st.sampled_from(blocks), min_size=1, max_size=most))
    case = draw(
        training_cases(
            exact=exact,
            net=Stack(dim, tuple(chosen), multiplier, bias=draw(st.booleans())),
            dtype=dtype,
            mesh=tuple(sizes.values()),
            reshard_after_forward=RESHARDS,
        )
    )
    return replace(as_case(kind, case, axes=tuple(sizes), shard=sharding, replicate=copying), **fixed)


def on_each(case: P, meshes: Iterable[Mesh]) -> list[P]:
    """The case on each of these meshes, once."""
    found = [
        replace(
            case,
            world_size=ranks_of(mesh),
            axes=tuple(mesh[0]),
            mesh=tuple(mesh[0].values()),
            shard=mesh[1],
            replicate=mesh[2],
        )
        for mesh in meshes
    ]
    return list(dict.fromkeys(found))


def ranks_of(mesh: Mesh) -> int:
    """How many ranks a mesh has."""
    return math.prod(mesh[0].values())


def full_parts(dims: tuple[int, int], tp: int) -> bool:
    """Whether torch.chunk cuts the hidden dim into as many parts as tp has ranks."""
    rows = dims[0] * dims[1]
    return -(-rows // tp) * (tp - 1) < rows


def divides(dims: tuple[int, int], tp: int) -> bool:
    """Whether the hidden dim is not 1, and tp cuts it into equal parts."""
    return dims[0] * dims[1] > 1 and dims[0] * dims[1] % tp == 0


def cut_over_tp(rank: Rank, case: CaseOnMesh, net: nn.Sequential) -> nn.Sequential:
    """Cut every MLP, ``in_proj`` by columns and ``out_proj`` by rows, if there is such an axis."""
    for block in net if "tp" in case.axes else ():
        plan = {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
        parallelize_module(block, whole_mesh(rank, case)["tp"], plan)
    return net


def lay_on(mesh: DeviceMesh, case: ParallelCase, net: nn.Module) -> None:
    """Make every parameter a DTensor on a mesh of some axes, cut over those that share layers, whole on the others."""
    for prefix, module in net.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            dim = case.cut_by_tp(f"{prefix}.{name}")
            cut = Replicate() if dim is None else Shard(dim)
            placed = [cut if axis in case.tp_axes else Replicate() for axis in mesh.mesh_dim_names or ()]
            whole = distribute_tensor(parameter.detach(), mesh, placed, src_data_rank=None)
            setattr(module, name, nn.Parameter(whole))
