"""Stacks of MLPs under tensor parallelism and then ``fully_shard``: the case, what each rank holds, and the programs.

On four ranks with tp 2, rank ``2·dp + tp`` holds of a column-wise weight of eight rows::

    rank 0: rows 0, 1    rank 1: rows 4, 5    rank 2: rows 2, 3    rank 3: rows 6, 7
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.parallel import cut_by_tp, full_parts
from suites.kit.programs import apply, steps
from suites.kit.strategies import training_cases, two_axis_shapes
from suites.oracle.layout import shard
from suites.oracle.situation import Trace


@dataclass(frozen=True)
class TwoAxisCase(TrainingCase):
    """MLPs of which ``tp`` neighbouring ranks share each layer, and one batch; the other axis, dp, shards further."""

    tp: int = 1

    @property
    def dp(self) -> int:
        """How many ranks the other axis has."""
        return self.world_size // self.tp

    @property
    def data_ranks(self) -> int:
        """As many as have a batch of their own."""
        return self.dp

    def data_rank(self, rank: int) -> int:
        """The place on dp."""
        return rank // self.tp

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter."""
        dim = cut_by_tp(name.partition(".")[2])
        left = full if dim is None else shard(full, self.tp, rank % self.tp, dim)
        return shard(left, self.dp, rank // self.tp)


@st.composite
def two_axis_cases(draw: st.DrawFn, /, dims: tuple[int, int] = (1, 6), exact: bool = False) -> TwoAxisCase:
    """Ranks in every shape of two axes; dims that neither axis need divide, but tp leaves no rank without rows.

    Exact cases are for training: there tp divides the hidden dim, which is not 1, since its own operations ask for
    that; and two blocks need float64 to stay exact (see ``training_cases``).
    """
    world_size, tp = draw(two_axis_shapes((2, 2, 1, 4)))
    pairs = st.tuples(st.integers(*dims), st.integers(1, 3)).filter(lambda two: full_parts(two, tp))
    if exact:
        pairs = pairs.filter(lambda two: two[0] * two[1] >= 2 and two[0] * two[1] % tp == 0)
    dim, multiplier = draw(pairs)
    dtype = draw(st.sampled_from(["float64", "float32"]))
    most = 3 if not exact else 2 if dtype == "float64" else 1
    blocks = draw(st.lists(st.sampled_from(["mlp", "buffer"]), min_size=1, max_size=most))
    net = Stack(dim, tuple(blocks), multiplier, bias=draw(st.booleans()))  # type: ignore[arg-type]
    reshard = draw(st.sampled_from([None, True, False]))
    case = draw(training_cases(exact=exact, net=net, dtype=dtype, world_size=world_size, reshard_after_forward=reshard))
    return TwoAxisCase(**{name: getattr(case, name) for name in TrainingCase.__dataclass_fields__}, tp=tp)


def mesh_of(rank: Rank, case: TwoAxisCase) -> DeviceMesh:
    """The mesh of both axes."""
    return rank.mesh((case.dp, case.tp), ("dp", "tp"))


def apply_both(rank: Rank, case: TwoAxisCase, net: nn.Sequential, **options: Any) -> nn.Sequential:
    """Cut every MLP over tp, ``in_proj`` by columns and ``out_proj`` by rows; then shard over dp."""
    mesh = mesh_of(rank, case)
    for block in net:
        parallelize_module(block, mesh["tp"], {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()})
    return apply(rank, case, net, mesh=mesh["dp"], **options)


def placements(name: str) -> list[str]:
    """The placements of a parameter in words, dp first."""
    dim = cut_by_tp(name.partition(".")[2])
    return ["Shard(0)", "Replicate()" if dim is None else f"Shard({dim})"]


def train_prepared(rank: Rank, case: TwoAxisCase, net: nn.Module) -> Trace:
    """Train a net that is sharded already; ranks of one tp group see the batch of their place on dp."""
    return steps(rank, case, net)
