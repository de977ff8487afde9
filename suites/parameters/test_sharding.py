"""Sharding: what a parameter is after ``fully_shard``, by itself and after tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.parallel import ParallelCase, local_part, parallel_cases, placements, shard_in_two_ways
from suites.kit.programs import mesh_of, shard_tree, size_and_stride, spread, train
from suites.kit.strategies import costly, trees
from suites.kit.trees import TreeCase
from suites.oracle.judging import trains
from suites.oracle.layout import local, shard
from suites.parameters.empties import EmptyCase, empty_cases


def seen(rank: Rank, case: TreeCase | ParallelCase) -> dict[str, dict[str, Any]]:
    """Of every parameter how it lies on the mesh, its global size and stride, and what this rank holds."""
    if isinstance(case, ParallelCase):
        net, mesh = shard_in_two_ways(rank, case), case.mesh(rank)
    else:
        net, mesh = shard_tree(rank, case), mesh_of(rank, case)
    return {name: {**spread(p, mesh), **size_and_stride(p), "local": local(p)} for name, p in net.named_parameters()}


def is_seen(trial: Trial, case: TreeCase | ParallelCase, want: Callable[[int, str, Tensor], dict[str, Any]]) -> None:
    """Compare some facts of every parameter with what they must be, given the rank and the parameter as it was."""
    full = [(name, parameter.detach()) for name, parameter in case.build().named_parameters()]
    for number, got in enumerate(trial.run(seen, case)):
        due = {name: want(number, name, parameter) for name, parameter in full}
        known = next(iter(due.values()))
        trial.agree(f"rank {number}", {name: {fact: own[fact] for fact in known} for name, own in got.items()}, due)


@requirement("sharding/layout", Feature.FULLY_SHARD, source="C8")
@given(case=trees())
def test_every_parameter_is_sharded_on_its_first_dim_over_the_given_mesh(trial: Trial, case: TreeCase) -> None:
    """Every parameter is registered as a DTensor on the mesh that was given, placed as (Shard(0),)."""
    is_seen(trial, case, lambda *_: {"type": "DTensor", "on the mesh": True, "placements": ["Shard(0)"]})


@requirement("sharding/size-and-stride", Feature.FULLY_SHARD, source="C8")
@given(case=trees())
def test_sharded_parameters_keep_their_global_size_and_stride(trial: Trial, case: TreeCase) -> None:
    """The size and stride of a sharded parameter are those of the original, also where ranks do not divide it."""
    is_seen(trial, case, lambda _, __, full: size_and_stride(full))


@requirement("sharding/rows", Feature.FULLY_SHARD, source="C8")
@example(case=TreeCase(2, Stack(3, ("linear",), multiplier=1, bias=False)))
@given(case=trees())
def test_each_rank_holds_its_chunk_of_rows(trial: Trial, case: TreeCase) -> None:
    """A rank's local tensor is its part of the rows as torch.chunk cuts them; empty parts keep other dims."""
    is_seen(trial, case, lambda number, _, full: {"local": shard(full, case.shards, number // case.copies)})


@requirement("sharding/shared", Feature.FULLY_SHARD, source="C8")
@given(case=trees(fewest_shared=1))
def test_shared_parameters_are_sharded_once_under_their_first_name(trial: Trial, case: TreeCase) -> None:
    """Tied weights and shared submodules stay shared: named once, under the first name, with one chunk of rows."""
    is_seen(trial, case, lambda number, _, full: {"local": shard(full, case.shards, number // case.copies)})


#: Of the three blocks the last two are sharded by themselves, so that one group has nothing to communicate.
EMPTY = EmptyCase(2, Stack(3, ("linear", "linear")), (1, 2), "float64", exact=True, steps=2)


@requirement("sharding/zero-elements", Feature.FULLY_SHARD, level="should", ranks=2)
@costly()
@example(case=EMPTY)
@given(case=empty_cases())
def test_a_parameter_without_elements_is_sharded_as_any_other(trial: Trial, case: EmptyCase) -> None:
    """A net with a parameter of no elements trains as unsharded: it and its gradient keep their other dims."""
    trains(trial, train, case)


def full_2d(rank: Rank, case: ParallelCase) -> dict[str, Any]:
    """Every parameter, put together again by its own placements."""
    named = shard_in_two_ways(rank, case).named_parameters()
    return {name: p.full_tensor().detach() if hasattr(p, "full_tensor") else "not a DTensor" for name, p in named}


@requirement("sharding/2d-mesh", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=ParallelCase(4, 2, dim=5, multiplier=1))
@given(case=parallel_cases())
def test_tensor_parallel_parameters_lie_on_the_mesh_of_both_axes(trial: Trial, case: ParallelCase) -> None:
    """After tensor parallelism over tp and fully_shard over dp, every parameter is a DTensor on the (dp, tp) mesh."""
    is_seen(trial, case, lambda *_: {"type": "DTensor", "on the mesh": True})


@requirement("sharding/2d-placements", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=ParallelCase(4, 2, dim=5, multiplier=1))
@given(case=parallel_cases())
def test_placements_say_how_both_axes_cut_a_parameter(trial: Trial, case: ParallelCase) -> None:
    """dp shards dim 0; tp shards dim 0 of column-wise, dim 1 of row-wise weights, and replicates row-wise biases."""
    is_seen(trial, case, lambda _, name, __: {"placements": placements(name)})


@requirement("sharding/2d-size-and-stride", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=ParallelCase(4, 2, dim=5, multiplier=1))
@given(case=parallel_cases())
def test_parameters_cut_by_two_axes_keep_their_global_size_and_stride(trial: Trial, case: ParallelCase) -> None:
    """The size and stride of a parameter sharded over dp and tp are those of the original."""
    is_seen(trial, case, lambda _, __, full: size_and_stride(full))


@requirement("sharding/2d-rows", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=ParallelCase(4, 2, dim=5, multiplier=1))
@given(case=parallel_cases())
def test_fully_shard_cuts_rows_of_what_tensor_parallelism_left(trial: Trial, case: ParallelCase) -> None:
    """A rank's local tensor is its dp chunk of the rows of its tp part, as torch.chunk cuts both."""
    is_seen(trial, case, lambda number, name, full: {"local": local_part(case, number, name, full)})


@requirement("sharding/2d-full", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=ParallelCase(4, 2, dim=1, multiplier=2, bias=False))
@given(case=parallel_cases(tp_divides=True))
def test_the_full_tensor_of_a_parameter_cut_by_two_axes_is_the_original(trial: Trial, case: ParallelCase) -> None:
    """full_tensor() of a parameter sharded over dp and tp equals the original bit for bit, rows in their order."""
    puts_together(trial, case)


@requirement("sharding/2d-full-uneven", Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL, ranks=2, source="C9")
@example(case=ParallelCase(4, 2, dim=5, multiplier=1))
@given(case=parallel_cases())
def test_the_full_tensor_is_the_original_where_tp_parts_differ_in_size(trial: Trial, case: ParallelCase) -> None:
    """full_tensor() equals the original bit for bit also where neither dp nor tp divides the dims."""
    puts_together(trial, case)


def puts_together(trial: Trial, case: ParallelCase) -> None:
    """Compare what each rank puts together with the original."""
    for number, got in enumerate(trial.run(full_2d, case)):
        trial.agree(f"rank {number}", got, case.full())
