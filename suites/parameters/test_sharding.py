"""Sharding: what a parameter is after ``fully_shard``, by itself and after tensor parallelism."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given
from torch import Tensor, nn

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.parallel import ParallelCase, cut_over_tp, parallel_cases
from suites.kit.programs import apply, data_mesh, parameters, shard_tree, size_and_stride, spread, train, whole_mesh
from suites.kit.strategies import costly, trees
from suites.kit.trees import TreeCase
from suites.oracle.expected import expected
from suites.oracle.layout import shard
from suites.parameters.empties import EmptyCase, empty_cases


def layouts(rank: Rank, case: TreeCase) -> dict[str, Any]:
    """How every parameter lies on the mesh that was given."""
    return {name: spread(p, data_mesh(rank, case)) for name, p in shard_tree(rank, case).named_parameters()}


def shapes(rank: Rank, case: TreeCase) -> dict[str, Any]:
    """Every parameter's global size and stride."""
    return {name: size_and_stride(p) for name, p in shard_tree(rank, case).named_parameters()}


def rows(rank: Rank, case: TreeCase) -> dict[str, Tensor]:
    """Every parameter's local tensor."""
    return parameters(shard_tree(rank, case))


@requirement("sharding/layout", Feature.FULLY_SHARD, source="C8")
@given(case=trees())
def test_every_parameter_is_sharded_on_its_first_dim_over_the_given_mesh(trial: Trial, case: TreeCase) -> None:
    """Every parameter is registered as a DTensor on the mesh that was given, placed as (Shard(0),)."""
    want = {"type": "DTensor", "on the mesh": True, "placements": ["Shard(0)"]}
    for number, got in enumerate(trial.run(layouts, case)):
        trial.agree(f"rank {number}", got, {name: want for name, _ in case.build().named_parameters()})


@requirement("sharding/size-and-stride", Feature.FULLY_SHARD, source="C8")
@given(case=trees())
def test_sharded_parameters_keep_their_global_size_and_stride(trial: Trial, case: TreeCase) -> None:
    """The size and stride of a sharded parameter are those of the original, also where ranks do not divide it."""
    want = {name: size_and_stride(p) for name, p in case.build().named_parameters()}
    for number, got in enumerate(trial.run(shapes, case)):
        trial.agree(f"rank {number}", got, want)


@requirement("sharding/rows", Feature.FULLY_SHARD, source="C8")
@example(case=TreeCase(2, Stack(3, ("linear",), multiplier=1, bias=False)))
@given(case=trees())
def test_each_rank_holds_its_chunk_of_rows(trial: Trial, case: TreeCase) -> None:
    """A rank's local tensor is its part of the rows as torch.chunk cuts them; empty parts keep other dims."""
    holds_its_rows(trial, case)


@requirement("sharding/shared", Feature.FULLY_SHARD, source="C8")
@given(case=trees(fewest_shared=1))
def test_shared_parameters_are_sharded_once_under_their_first_name(trial: Trial, case: TreeCase) -> None:
    """Tied weights and shared submodules stay shared: named once, under the first name, with one chunk of rows."""
    holds_its_rows(trial, case)


#: Of the three blocks the last two are sharded by themselves, so that one group has nothing to communicate.
EMPTY = EmptyCase(2, Stack(3, ("linear", "linear")), (1, 2), "float64", exact=True, steps=2)


@requirement("sharding/zero-elements", Feature.FULLY_SHARD, level="should", ranks=2)
@costly()
@example(case=EMPTY)
@given(case=empty_cases())
def test_a_parameter_without_elements_is_sharded_as_any_other(trial: Trial, case: EmptyCase) -> None:
    """A net with a parameter of no elements trains as unsharded: it and its gradient keep their other dims."""
    full = expected(case)
    for number, trace in enumerate(trial.run(train, case)):
        trial.agree(f"rank {number}", trace, full.trace(number))


def holds_its_rows(trial: Trial, case: TreeCase) -> None:
    """Compare each rank's local tensors with their rows of the unsharded net's."""
    full = {name: p.detach() for name, p in case.build().named_parameters()}
    for number, got in enumerate(trial.run(rows, case)):
        place = number // (case.world_size // case.shards)
        trial.agree(f"rank {number}", got, {name: shard(p, case.shards, place) for name, p in full.items()})


#: Two ranks each way, which do not divide the rows of one MLP; and the least that has something to put together.
UNEVEN = ParallelCase(4, Stack(5, ("mlp",), multiplier=1), mesh=(2, 2))
SMALL = replace(UNEVEN, net=Stack(1, ("mlp",), multiplier=2, bias=False))


def shard_in_two_ways(rank: Rank, case: ParallelCase) -> nn.Sequential:
    """Tensor parallelism over tp, then ``fully_shard`` over dp."""
    return apply(rank, case, cut_over_tp(rank, case, case.build()))


def layouts_2d(rank: Rank, case: ParallelCase) -> dict[str, Any]:
    """How every parameter lies on the mesh of both axes."""
    return {name: spread(p, whole_mesh(rank, case)) for name, p in shard_in_two_ways(rank, case).named_parameters()}


def shapes_2d(rank: Rank, case: ParallelCase) -> dict[str, Any]:
    """Every parameter's global size and stride."""
    return {name: size_and_stride(p) for name, p in shard_in_two_ways(rank, case).named_parameters()}


def rows_2d(rank: Rank, case: ParallelCase) -> dict[str, Tensor]:
    """Every parameter's local tensor."""
    return parameters(shard_in_two_ways(rank, case))


def full_2d(rank: Rank, case: ParallelCase) -> dict[str, Any]:
    """Every parameter, put together again by its own placements."""
    named = shard_in_two_ways(rank, case).named_parameters()
    return {name: p.full_tensor().detach() if hasattr(p, "full_tensor") else "not a DTensor" for name, p in named}


@requirement("sharding/2d-mesh", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_tensor_parallel_parameters_lie_on_the_mesh_of_both_axes(trial: Trial, case: ParallelCase) -> None:
    """After tensor parallelism over tp and fully_shard over dp, every parameter is a DTensor on the (dp, tp) mesh."""
    for number, got in enumerate(trial.run(layouts_2d, case)):
        want = {name: {**got.get(name, {}), "type": "DTensor", "on the mesh": True} for name in case.full()}
        trial.agree(f"rank {number}", got, want)


@requirement("sharding/2d-placements", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_placements_say_how_both_axes_cut_a_parameter(trial: Trial, case: ParallelCase) -> None:
    """dp shards dim 0; tp shards dim 0 of column-wise, dim 1 of row-wise weights, and replicates row-wise biases."""
    for number, got in enumerate(trial.run(layouts_2d, case)):
        came = {name: facts["placements"] for name, facts in got.items()}
        trial.agree(f"rank {number}", came, {name: case.placements(name) for name in case.full()})


@requirement("sharding/2d-size-and-stride", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_parameters_cut_by_two_axes_keep_their_global_size_and_stride(trial: Trial, case: ParallelCase) -> None:
    """The size and stride of a parameter sharded over dp and tp are those of the original."""
    for number, got in enumerate(trial.run(shapes_2d, case)):
        trial.agree(f"rank {number}", got, {name: size_and_stride(p) for name, p in case.full().items()})


@requirement("sharding/2d-rows", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_fully_shard_cuts_rows_of_what_tensor_parallelism_left(trial: Trial, case: ParallelCase) -> None:
    """A rank's local tensor is its dp chunk of the rows of its tp part, as torch.chunk cuts both."""
    for number, got in enumerate(trial.run(rows_2d, case)):
        trial.agree(f"rank {number}", got, case.parts(number))


@requirement("sharding/2d-full", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=SMALL)
@given(case=parallel_cases())
def test_the_full_tensor_of_a_parameter_cut_by_two_axes_is_the_original(trial: Trial, case: ParallelCase) -> None:
    """full_tensor() of a parameter sharded over dp and tp equals the original bit for bit, rows in their order."""
    puts_together(trial, case)


@requirement("sharding/2d-full-uneven", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=UNEVEN)
@given(case=parallel_cases(even=False))
def test_the_full_tensor_is_the_original_where_tp_parts_differ_in_size(trial: Trial, case: ParallelCase) -> None:
    """full_tensor() equals the original bit for bit also where neither dp nor tp divides the dims."""
    puts_together(trial, case)


def puts_together(trial: Trial, case: ParallelCase) -> None:
    """Compare what each rank puts together with the original."""
    for number, got in enumerate(trial.run(full_2d, case)):
        trial.agree(f"rank {number}", got, case.full())
