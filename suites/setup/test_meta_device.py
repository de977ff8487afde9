"""The meta device: nets are built and sharded without memory, given memory, filled, and trained.

A weight of five rows on two ranks has no memory anywhere until ``to_empty``, and three and two rows of it afterwards::

    fully_shard    rank 0: DTensor of (5, 4), local (3, 4) on meta    rank 1: DTensor of (5, 4), local (2, 4) on meta
    to_empty       rank 0: local (3, 4) on the device                  rank 1: local (2, 4) on the device
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import example
from torch import nn

from harness.requirement import requirement
from harness.trial import Trial, refused
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.parallel import parallel_cases
from suites.kit.strategies import given, given_half
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows
from suites.setup.meta_programs import (
    FACTS,
    FromFullState,
    FromMeta,
    MetaCase,
    cases_in_part,
    facts_of,
    forward_too_early,
    left_unwritten,
    materialized,
    meta_cases,
    names_in,
    names_left_on_meta,
    on_meta,
    overwritten,
    step_after_reset,
)

TWO_AXES = (Feature.FULLY_SHARD, Feature.META_DEVICE, Feature.TENSOR_PARALLEL)
two_axis_cases = partial(parallel_cases, kind=MetaCase)
#: Two ranks, which do not divide rows.
UNEVEN = MetaCase(2, Stack(3, ("linear",), multiplier=1), axes=("dp",))


@requirement("meta/sharding-keeps-meta", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_parameters_sharded_on_meta_stay_there_as_dtensors(trial: Trial, case: MetaCase) -> None:
    """Parameters sharded on meta stay on meta, as DTensors placed and cut as on a device, with any mesh."""
    lie(trial, case, on_meta, device="meta")


@requirement("meta/to-empty", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@example(case=UNEVEN)
@given(case=meta_cases())
def test_to_empty_gives_every_shard_memory_on_the_device(trial: Trial, case: MetaCase) -> None:
    """After to_empty every parameter lies on the device, as a DTensor of the same size, placements and rows."""
    lie(trial, case, materialized)


@requirement("meta/reset-parameters", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@example(case=UNEVEN)
@given(case=meta_cases())
def test_reset_parameters_writes_every_shard(trial: Trial, case: MetaCase) -> None:
    """After to_empty, reset_parameters of each module writes every element of every shard and every buffer."""
    is_none_of(trial, left_unwritten, case)


@requirement("meta/module-by-module", Feature.FULLY_SHARD, Feature.META_DEVICE)
@example(case=UNEVEN)
@given(case=meta_cases())
def test_modules_are_given_memory_one_by_one(trial: Trial, case: MetaCase) -> None:
    """to_empty(recurse=False) gives memory to what is a module's own, and leaves what was written to modules in it."""
    is_none_of(trial, overwritten, case)


@requirement("meta/step-after-reset", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_one_step_runs_after_reset_parameters(trial: Trial, case: MetaCase) -> None:
    """Training starts from reset parameters: the loss is finite, and a step moves every element that has a gradient."""
    finds(trial, step_after_reset, case, {"finite": True, "without gradient": [], "stuck": []})


@requirement("meta/training", Feature.FULLY_SHARD, Feature.META_DEVICE, ranks=2, source="C13")
@given(case=meta_cases(at_least=2, exact=True))
def test_a_net_from_meta_trains_as_the_unsharded_model(trial: Trial, case: MetaCase) -> None:
    """With weights written into its shards, a net that began on meta trains as the unsharded model, bit for bit."""
    follows(trial, FromMeta.play, expected(case))


@requirement("meta/full-state", Feature.FULLY_SHARD, Feature.META_DEVICE, Feature.STATE_DICT, ranks=2)
@given(case=meta_cases(at_least=2, exact=True))
def test_a_net_on_meta_is_loaded_from_a_full_state_of_every_rank(trial: Trial, case: MetaCase) -> None:
    """Loaded from a full state dict that every rank has, a net that began on meta trains as the unsharded model."""
    follows(trial, FromFullState.play, expected(case))


@requirement("meta/forward-is-refused", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C15")
@given(case=cases_in_part())
def test_forward_is_refused_while_parameters_are_on_meta(trial: Trial, case: MetaCase) -> None:
    """Forward, while a parameter is still on meta, raises an error that names it, the device or the way off it."""
    trial.refuses(forward_too_early, case, "meta device", "materialize", "to_empty", *names_left_on_meta(case))


@requirement("meta/refusal-names-parameters", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C15")
@example(case=MetaCase(1, Stack(2, ("linear", "linear")), (0, 1), axes=("dp",)))
@example(case=MetaCase(1, Stack(2, ("linear", "linear")), axes=("dp",), given=(0,)))
@given(case=cases_in_part())
def test_the_refusal_names_the_parameters_that_are_on_meta(trial: Trial, case: MetaCase) -> None:
    """The error names a parameter that is still on meta, and none that has memory."""
    left = names_left_on_meta(case)
    for number, refusal in enumerate(trial.run(refused, case, forward_too_early)):
        named = names_in(refusal["message"], case) if refusal else []
        words = f"rank {number}: expected an error that names some of {left} and no other, it names {named}"
        trial.holds(bool(named) and {*named} <= {*left}, words)


@requirement("meta/2d-sharding-keeps-meta", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases(even=False))
def test_parameters_cut_by_two_axes_on_meta_stay_there(trial: Trial, case: MetaCase) -> None:
    """After tensor parallelism and fully_shard on meta, parameters are DTensors on meta, cut by both axes."""
    lie(trial, case, on_meta, device="meta")


@requirement("meta/2d-to-empty", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases(even=False))
def test_to_empty_gives_parts_cut_by_two_axes_memory(trial: Trial, case: MetaCase) -> None:
    """After to_empty, parameters cut by tensor parallelism and fully_shard lie on the device, cut as before."""
    lie(trial, case, materialized)


@requirement("meta/2d-reset-parameters", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases(even=False))
def test_reset_parameters_writes_parts_cut_by_two_axes(trial: Trial, case: MetaCase) -> None:
    """Under tensor parallelism too, reset_parameters of each module writes every element of every shard and buffer."""
    is_none_of(trial, left_unwritten, case)


@requirement("meta/2d-training", *TWO_AXES, ranks=2, source="C14")
@example(case=MetaCase(4, Stack(3, ("mlp",)), (0,), "float32", exact=True, mesh=(2, 2), steps=1))
@given_half(case=two_axis_cases(exact=True))
def test_a_tensor_parallel_net_from_meta_trains_as_the_unsharded_model(trial: Trial, case: MetaCase) -> None:
    """With weights written into its parts, a tensor-parallel net that began on meta trains as the unsharded model."""
    follows(trial, FromMeta.play, expected(case))


def lie(trial: Trial, case: MetaCase, make: Callable[[Rank, MetaCase], nn.Module], **other: Any) -> None:
    """Require of every parameter of the net that is made so how it lies; ``other`` is what is unusual."""
    finds(trial, partial(facts_of, make=make), case, lambda rank: case.layouts(rank, *FACTS, **other))


def is_none_of(trial: Trial, program: Callable[[Rank, MetaCase], dict[str, bool]], case: MetaCase) -> None:
    """Require that a program finds no parameter and no buffer."""
    names = [*case.full(), *dict(case.build().named_buffers())]
    finds(trial, program, case, dict.fromkeys(names, False))
