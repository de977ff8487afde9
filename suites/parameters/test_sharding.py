"""Sharding: what a parameter is after ``fully_shard``, by itself and after tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import example
from hypothesis import strategies as st
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.generated.net_cases import GeneratedCase
from suites.generated.net_programs import spread_net
from suites.generated.net_strategies import generated_cases, shared_nets
from suites.kit.cases import SPREAD, CaseOnMesh, Stack
from suites.kit.nets import Block, Net
from suites.kit.parallel import ParallelCase, cut_over_tp, lay_on, parallel_cases
from suites.kit.programs import apply, data_mesh, layouts, train, whole_mesh
from suites.kit.strategies import costly, given, world_sizes
from suites.oracle.judging import finds, trains
from suites.oracle.layout import shard
from suites.parameters.empties import EMPTY_ROWS, NO_ROWS, EmptyCase, empty_cases

#: Two ranks each way, which do not divide the rows of one MLP; and the least that has something to put together.
UNEVEN = ParallelCase(4, Stack(5, ("mlp",), multiplier=1), mesh=(2, 2))
SMALL = replace(UNEVEN, net=Stack(1, ("mlp",), multiplier=2, bias=False))
#: Two axes besides dp cut the same dim, so that along dp rows are strided by four.
CUT_TWICE = replace(SMALL, world_size=8, net=replace(SMALL.net, multiplier=8), mesh=(2, 2, 2), axes=("dp", "ep", "tp"))
#: Of each of these ranks one replica, so that a parameter lies on four axes.
ON_FOUR_AXES = replace(CUT_TWICE, mesh=(1, *CUT_TWICE.mesh), axes=("copies", *CUT_TWICE.axes), replicate=("copies",))


@dataclass(frozen=True)
class CopiedCase(GeneratedCase):
    """A net that is sharded over one axis of a ``mesh`` of shards and copies, or over all ranks."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes."""
        return ("shard", "copy") if self.mesh else ()

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The one that shards."""
        return self.axes[:1]

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds: its part of as many as there are shards."""
        copies = self.mesh[1] if self.mesh else 1
        return shard(full, self.world_size // copies, rank // copies)


@st.composite
def cases(draw: st.DrawFn, /, **nets: Any) -> CopiedCase:
    """Any net and plan, with two copies or one."""
    case = draw(generated_cases(lists=False, world_size=world_sizes(), **nets))
    pairs = [] if case.world_size % 2 else [(case.world_size // 2, 2)]
    return CopiedCase(**{**vars(case), "mesh": draw(st.sampled_from([(), *pairs]))})


#: Rows that ranks do not divide; and two copies of a whole net.
THREE_ROWS = CopiedCase(2, Net(3, (Block("linear"),)))
COPIES = replace(THREE_ROWS, mesh=(1, 2))


def on_one_axis(rank: Rank, case: CopiedCase, *facts: str) -> dict[str, Any]:
    """How every parameter of a sharded net lies on the mesh that was given."""
    return layouts(spread_net(rank, case, case.build()), data_mesh(rank, case), *facts)


def on_two_axes(rank: Rank, case: ParallelCase, *facts: str) -> dict[str, Any]:
    """How it lies on the mesh of all axes after tensor parallelism over tp or two axes, and ``fully_shard`` over dp."""
    if case.replicate:
        asks_for(Feature.HSDP)
    net, mesh = case.build(), whole_mesh(rank, case)
    if len(case.tp_axes) > 1:
        lay_on(mesh[case.tp_axes], case, net)
    else:
        cut_over_tp(rank, case, net)
    return layouts(apply(rank, case, net), mesh, *facts)


def lies(trial: Trial, case: CaseOnMesh, *facts: str) -> None:
    """Compare these facts of every parameter with what the case says."""
    program = on_one_axis if isinstance(case, CopiedCase) else on_two_axes
    finds(trial, program, case, lambda number: case.layouts(number, *facts), *facts)


@requirement("sharding/layout", Feature.FULLY_SHARD, source="C8")
@example(case=COPIES)
@given(case=cases())
def test_every_parameter_is_sharded_on_its_first_dim_over_the_given_mesh(trial: Trial, case: CopiedCase) -> None:
    """Every parameter is registered as a DTensor on the mesh that was given, placed as (Shard(0),)."""
    lies(trial, case, *SPREAD)


@requirement("sharding/size-and-stride", Feature.FULLY_SHARD, source="C8")
@example(case=THREE_ROWS)
@given(case=cases())
def test_sharded_parameters_keep_their_global_size_and_stride(trial: Trial, case: CopiedCase) -> None:
    """The size and stride of a sharded parameter are those of the original, also where ranks do not divide it."""
    lies(trial, case, "size", "stride")


@requirement("sharding/rows", Feature.FULLY_SHARD, source="C8")
@example(case=THREE_ROWS)
@given(case=cases())
def test_each_rank_holds_its_chunk_of_rows(trial: Trial, case: CopiedCase) -> None:
    """A rank's local tensor is its part of the rows as torch.chunk cuts them; empty parts keep other dims."""
    lies(trial, case, "local")


@requirement("sharding/shared", Feature.FULLY_SHARD, source="C8")
@given(case=cases(nets=shared_nets()))
def test_shared_parameters_are_sharded_once_under_their_first_name(trial: Trial, case: CopiedCase) -> None:
    """Tied weights and shared submodules stay shared: named once, under the first name, with one chunk of rows."""
    lies(trial, case, "local")


#: Of the three blocks the last two are sharded by themselves, so that one group has nothing to communicate.
EMPTY = EmptyCase(2, Stack(3, ("linear", "linear")), (1, 2), "float64", exact=True, steps=2)


def beside_nothing(rank: Rank, case: EmptyCase, *facts: str) -> dict[str, Any]:
    """How every parameter lies where one has no elements."""
    return layouts(apply(rank, case, case.build()), data_mesh(rank, case), *facts)


@requirement("sharding/zero-elements-layout", Feature.FULLY_SHARD, level="should", ranks=2)
@costly()
@example(case=EMPTY)
@given(case=empty_cases(*NO_ROWS))
def test_a_parameter_without_rows_lies_as_any_other(trial: Trial, case: EmptyCase) -> None:
    """A parameter of no rows is sharded as any other: it keeps its size and stride, and ranks have empty parts."""
    finds(trial, beside_nothing, case, case.layouts)


@requirement("sharding/zero-elements", Feature.FULLY_SHARD, level="should", ranks=2)
@costly()
@example(case=EMPTY)
@given(case=empty_cases(*NO_ROWS, *EMPTY_ROWS))
def test_a_parameter_without_elements_is_sharded_as_any_other(trial: Trial, case: EmptyCase) -> None:
    """A net with a parameter of no elements trains as unsharded: it and its gradient keep their other dims."""
    trains(trial, train, case)


@requirement("sharding/2d-mesh", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_tensor_parallel_parameters_lie_on_the_mesh_of_both_axes(trial: Trial, case: ParallelCase) -> None:
    """After tensor parallelism over tp and fully_shard over dp, every parameter is a DTensor on the (dp, tp) mesh."""
    lies(trial, case, "type", "on the mesh")


@requirement("sharding/2d-placements", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_placements_say_how_both_axes_cut_a_parameter(trial: Trial, case: ParallelCase) -> None:
    """dp shards dim 0; tp shards dim 0 of column-wise, dim 1 of row-wise weights, and replicates row-wise biases."""
    lies(trial, case, "placements")


@requirement("sharding/2d-size-and-stride", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_parameters_cut_by_two_axes_keep_their_global_size_and_stride(trial: Trial, case: ParallelCase) -> None:
    """The size and stride of a parameter sharded over dp and tp are those of the original."""
    lies(trial, case, "size", "stride")


@requirement("sharding/2d-rows", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_fully_shard_cuts_rows_of_what_tensor_parallelism_left(trial: Trial, case: ParallelCase) -> None:
    """A rank's local tensor is its dp chunk of the rows of its tp part, as torch.chunk cuts both."""
    lies(trial, case, "local")


@requirement("sharding/2d-full", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=SMALL)
@example(case=CUT_TWICE)
@example(case=ON_FOUR_AXES)
@given(case=parallel_cases())
def test_the_full_tensor_of_a_parameter_cut_by_two_axes_is_the_original(trial: Trial, case: ParallelCase) -> None:
    """full_tensor() of a parameter sharded over dp and tp equals the original bit for bit, rows in their order."""
    lies(trial, case, "full")


@requirement("sharding/2d-full-uneven", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_the_full_tensor_is_the_original_where_tp_parts_differ_in_size(trial: Trial, case: ParallelCase) -> None:
    """full_tensor() equals the original bit for bit also where neither dp nor tp divides the dims."""
    lies(trial, case, "full")
