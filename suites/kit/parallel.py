"""Nets under tensor parallelism and then ``fully_shard``: the case, what each rank holds, and the program.

A column-wise weight of 8 rows on a mesh of dp 2 and tp 2: tp cuts it first, then dp cuts what tp left::

    dp 0: rows 0, 1 (tp 0) and 4, 5 (tp 1)    dp 1: rows 2, 3 (tp 0) and 6, 7 (tp 1)
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harness.data.case import Case
from harness.worlds.rank import Rank
from reference_models.nets import MLP
from suites.kit.cases import fill
from suites.kit.strategies import two_axis_shapes
from suites.oracle.layout import shard


@dataclass(frozen=True)
class ParallelCase(Case):
    """An MLP of which ``tp`` neighbouring ranks share each layer; the other mesh axis, dp, shards it further.

    ``plan`` are the layers given to ``fully_shard`` before the whole MLP.
    """

    world_size: int
    tp: int
    dim: int
    multiplier: int
    bias: bool = True
    buffer: bool = False
    plan: tuple[str, ...] = ()
    seed: int = 0

    @property
    def dp(self) -> int:
        """How many ranks the other axis has."""
        return self.world_size // self.tp

    def mesh(self, rank: Rank) -> DeviceMesh:
        """The mesh of both axes."""
        return rank.mesh((self.dp, self.tp), ("dp", "tp"))

    def build(self) -> MLP:
        """The MLP with weights drawn from the seed."""
        net = MLP(self.dim, self.multiplier, buffer=self.buffer, bias=self.bias)
        fill(net, self.seed, exact=False)
        return net

    def full(self) -> dict[str, Tensor]:
        """The unsharded parameters by name."""
        return {name: parameter.detach() for name, parameter in self.build().named_parameters()}


@st.composite
def parallel_cases(
    draw: st.DrawFn, buffers: st.SearchStrategy[bool] | None = None, tp_divides: bool = False
) -> ParallelCase:
    """Meshes in every shape of two axes; dims that neither axis need divide.

    Tensor parallelism gives each of its ranks something: parts of no columns are beyond what DTensors promise.
    """
    world_size, tp = draw(two_axis_shapes())
    fits = divides if tp_divides else full_parts
    dim, multiplier = draw(st.tuples(st.integers(1, 9), st.integers(1, 3)).filter(lambda dims: fits(dims, tp)))
    return ParallelCase(
        world_size=world_size,
        tp=tp,
        dim=dim,
        multiplier=multiplier,
        bias=draw(st.booleans()),
        buffer=draw(buffers or st.booleans()),
        plan=draw(st.sampled_from([(), ("in_proj",), ("in_proj", "out_proj")])),
        seed=draw(st.integers(0, 2**16)),
    )


def full_parts(dims: tuple[int, int], tp: int) -> bool:
    """Whether torch.chunk cuts the hidden dim into as many parts as tp has ranks."""
    rows = dims[0] * dims[1]
    return -(-rows // tp) * (tp - 1) < rows


def divides(dims: tuple[int, int], tp: int) -> bool:
    """Whether tp cuts the hidden dim into equal parts."""
    return dims[0] * dims[1] % tp == 0


def tensor_parallel(case: ParallelCase, net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Cut ``in_proj`` column-wise and ``out_proj`` row-wise over a mesh of one axis."""
    return parallelize_module(net, mesh, {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()})


def shard_in_two_ways(rank: Rank, case: ParallelCase) -> nn.Module:
    """Tensor parallelism over tp, then ``fully_shard`` over dp."""
    mesh, fully_shard = case.mesh(rank), rank.implementation.fully_shard
    assert fully_shard is not None
    net = tensor_parallel(case, case.build(), mesh["tp"])
    for name in case.plan:
        fully_shard(net.get_submodule(name), mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    return net


def cut_by_tp(name: str) -> int | None:
    """The dim that tensor parallelism cuts; None where every tp rank holds the whole."""
    return {"in_proj.weight": 0, "in_proj.bias": 0, "out_proj.weight": 1, "out_proj.bias": None}[name]


def placements(name: str) -> list[str]:
    """The placements in words, dp first."""
    dim = cut_by_tp(name)
    return ["Shard(0)", "Replicate()" if dim is None else f"Shard({dim})"]


def local_part(case: ParallelCase, number: int, name: str, full: Tensor) -> Tensor:
    """What rank ``number`` holds of a parameter."""
    dim = cut_by_tp(name)
    part = full if dim is None else shard(full, case.tp, number % case.tp, dim)
    return shard(part, case.dp, number // case.tp)
