"""Training under tensor parallelism and (hybrid) sharding: the cases, what each rank holds, and the programs.

On eight ranks as 2 replicas × 2 shards × tp 2, rank ``4·replica + 2·shard + tp`` holds of eight column-wise rows::

    ranks 0, 4: rows 0, 1    ranks 1, 5: rows 4, 5    ranks 2, 6: rows 2, 3    ranks 3, 7: rows 6, 7
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harness.trial import most_ranks
from harness.worlds.rank import Rank
from suites.kit.cases import Block, Stack, TrainingCase
from suites.kit.parallel import cut_by_tp
from suites.kit.programs import spread, steps
from suites.kit.strategies import training_cases
from suites.oracle.layout import local, shard
from suites.oracle.situation import Trace

AXES = ("replicate", "shard", "tp")
#: (replicas, shards, tp). The last needs a world of eight ranks, as threads have it.
FLAT = [(1, 2, 2), (1, 2, 2), (1, 1, 2), (1, 1, 4), (1, 2, 1)]
HYBRID = [(2, 2, 2), (2, 1, 2), (1, 2, 2), (2, 2, 1)]


@dataclass(frozen=True)
class ThreeAxisCase(TrainingCase):
    """MLPs of which ``tp`` neighbouring ranks share each layer, and one batch; ``mesh`` is (replicas, shards).

    Unless ``hybrid``, there is one replica, and the axis of replicas is not given to ``fully_shard``. ``free`` shards
    weights along the dim that tensor parallelism leaves whole; ``checkpointed`` recomputes every MLP in backward;
    ``offload`` keeps shards on the CPU.
    """

    tp: int = 1
    hybrid: bool = False
    free: bool = False
    checkpointed: bool = False
    offload: bool = False

    @property
    def data_ranks(self) -> int:
        """As many as have a batch of their own."""
        return self.world_size // self.tp

    def data_rank(self, rank: int) -> int:
        """The place on the data axes."""
        return rank // self.tp

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter."""
        dim = cut_by_tp(name.partition(".")[2])
        left = full if dim is None else shard(full, self.tp, rank % self.tp, dim)
        return shard(left, self.shards, rank // self.tp % self.shards, cut_by_data(self, name))


@st.composite
def three_axis_cases(draw: st.DrawFn, /, exact: bool = False, shapes: Any = FLAT, **fixed: Any) -> ThreeAxisCase:
    """Stacks of MLPs on meshes of ``shapes``; rows that no data axis need divide.

    The hidden dim is a multiple of tp and not 1, as tensor parallelism asks for. In general cases the bound is made
    from the unsharded model's own rounding errors, hence float32 (see ``tolerance.py``).
    """
    replicas, shards, tp = draw(st.sampled_from([s for s in shapes if s[0] * s[1] * s[2] <= max(4, most_ranks())]))
    dtype = fixed.get("dtype") or draw(st.sampled_from(["float64", "float32"] if exact else ["float32"]))
    whole = shards if fixed.get("free") else 1
    dims = st.tuples(st.integers(1, 5 if exact else 9).map(lambda d: -(-d // whole) * whole), st.integers(1, 3))
    dim, multiplier = draw(dims.filter(lambda two: two[0] * two[1] >= 2 and two[0] * two[1] % tp == 0))
    most = 3 if not exact else 2 if dtype == "float64" else 1
    blocks: list[Block] = draw(st.lists(st.sampled_from(["mlp", "buffer"]), min_size=1, max_size=most))
    net = Stack(dim, tuple(blocks), multiplier, bias=draw(st.booleans()))
    world_size = replicas * shards * tp
    reshard = draw(st.sampled_from([None, True, False]))
    case = draw(training_cases(exact=exact, net=net, dtype=dtype, world_size=world_size, reshard_after_forward=reshard))
    own = {name: getattr(case, name) for name in TrainingCase.__dataclass_fields__}
    return ThreeAxisCase(**{**own, "mesh": (replicas, shards), "tp": tp, "hybrid": shapes is HYBRID, **fixed})


def whole_mesh(rank: Rank, case: ThreeAxisCase) -> DeviceMesh:
    """The mesh of all axes that the case has."""
    axes = AXES if case.hybrid else AXES[1:]
    shape = (*case.mesh, case.tp) if case.hybrid else (case.shards, case.tp)
    return rank.mesh(shape, axes)


def shard_after_tp(rank: Rank, case: ThreeAxisCase) -> nn.Sequential:
    """Cut every MLP over tp, ``in_proj`` by columns and ``out_proj`` by rows; then shard by the plan."""
    net, mesh, subject = case.build(), whole_mesh(rank, case), rank.implementation
    for block in net:
        parallelize_module(block, mesh["tp"], {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()})
        if case.checkpointed:
            assert subject.checkpoint is not None
            subject.checkpoint(block)
    options: dict[str, Any] = {"mesh": mesh["replicate", "shard"] if case.hybrid else mesh["shard"]}
    if case.free:
        options["shard_placement_fn"] = where_tp_leaves_whole
    if case.offload:
        assert subject.cpu_offload_policy is not None
        options["offload_policy"] = subject.cpu_offload_policy(pin_memory=False)
    assert subject.fully_shard is not None
    for module in [*(net[place] for place in case.sharded), net]:
        subject.fully_shard(module, reshard_after_forward=case.reshard_after_forward, **options)
    return net


def where_tp_leaves_whole(parameter: nn.Parameter) -> Shard | None:
    """Dim 1 of what tensor parallelism cuts along dim 0, if there is one; else what is usual."""
    assert isinstance(parameter, DTensor)
    cut = parameter.placements[0]
    return Shard(1) if parameter.dim() == 2 and isinstance(cut, Shard) and cut.dim == 0 else None


def cut_by_data(case: ThreeAxisCase, name: str) -> int:
    """The dim that the shard axis cuts."""
    return 1 if case.free and name.endswith("in_proj.weight") else 0


def placements(case: ThreeAxisCase, name: str) -> list[str]:
    """The placements of a parameter in words, data axes first."""
    dim = cut_by_tp(name.partition(".")[2])
    own = [f"Shard({cut_by_data(case, name)})", "Replicate()" if dim is None else f"Shard({dim})"]
    return ["Replicate()", *own] if case.hybrid else own


def layouts(rank: Rank, case: ThreeAxisCase) -> dict[str, Any]:
    """Of every parameter: how it lies on the mesh, what this rank holds, and what all ranks put together."""
    net, mesh = shard_after_tp(rank, case), whole_mesh(rank, case)
    return {
        name: {**spread(p, mesh), "local": local(p), "full": p.full_tensor().detach()}  # type: ignore[attr-defined]
        for name, p in net.named_parameters()
    }


def expected_layouts(case: ThreeAxisCase, number: int) -> dict[str, Any]:
    """What ``layouts`` must say on rank ``number``."""
    named = ((name, p.detach()) for name, p in case.build().named_parameters())
    return {
        name: {
            "type": "DTensor",
            "on the mesh": True,
            "placements": placements(case, name),
            "local": case.part(number, name, full),
            "full": full,
        }
        for name, full in named
    }


def train_after_tp(rank: Rank, case: ThreeAxisCase) -> Trace:
    """Shard over all axes, then train; ranks of one tp group see the same batch."""
    return steps(rank, case, shard_after_tp(rank, case))


def devices_after_tp(rank: Rank, case: ThreeAxisCase) -> list[str]:
    """The kinds of device on which parameters, then gradients lie after training."""
    net = shard_after_tp(rank, case)
    number = case.data_rank(rank.number)
    case.loss(net(case.inputs(0, number).to(rank.device)), 0, number).backward()
    kept = [t for p in net.parameters() for t in (p, p.grad)]
    return sorted({"none" if tensor is None else tensor.device.type for tensor in kept})
