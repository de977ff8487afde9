"""Tensor parallelism, then sharding: layouts over all axes, training, clipping, scaling, as the unsharded model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack
from suites.kit.parallel import FLAT, HYBRID, on_each, parallel_cases
from suites.kit.strategies import costly, examples, examples_first, given
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows
from suites.parallelism.decoder import DecoderCase, ShardedDecoder, decoder_cases
from suites.parallelism.norms import NormCase, clips, norm_cases, scales
from suites.parallelism.partial_sums import TURNS, by_turns, right_by_turns, right_sums, sums
from suites.parallelism.tensor_parallel import TensorParallel, TensorParallelCase, devices, through_full_type

BOTH = (Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL)
cases = partial(parallel_cases, kind=TensorParallelCase)
#: Tried before any drawn case: two MLPs, gathered again for backward, and rows that the shard axis does not divide.
RICH = TensorParallelCase(
    world_size=4,
    net=Stack(dim=3, blocks=("mlp", "mlp"), multiplier=4),
    sharded=(0, 1),
    dtype="float64",
    exact=True,
    mesh=(2, 2),
    reshard_after_forward=True,
)
#: The same on three axes.
THREE_AXES = replace(
    RICH, world_size=8, mesh=(2, 2, 2), axes=("replicate", "shard", "tp"), shard=("shard",), replicate=("replicate",)
)
#: The same of one MLP in float32, which may be averaged on the way.
SINGLE = replace(RICH, net=replace(RICH.net, blocks=("mlp",)), sharded=(0,), dtype="float32", steps=1)
#: Meshes on which several ranks share a layer.
SHARED = [mesh for mesh in FLAT if mesh[0]["tp"] > 1]


@requirement("tensor-parallel/exact", *BOTH, ranks=2)
@examples(on_each(RICH, FLAT))
@given(case=cases(exact=True))
def test_training_after_tensor_parallelism_on_integers_is_exact(trial: Trial, case: TensorParallelCase) -> None:
    """On data whose sums are exact, MLPs cut over tp and dp train as the unsharded model does, bit for bit."""
    follows(trial, TensorParallel.play, expected(case))


@requirement("tensor-parallel/general", *BOTH, ranks=2)
@example(case=replace(RICH, dtype="float32", exact=False, steps=3))
@given(case=cases(dtype="float32"))
def test_training_after_tensor_parallelism_follows_the_unsharded_model(trial: Trial, case: TensorParallelCase) -> None:
    """Gradients are averaged over dp and not over tp: training is the unsharded model's on one batch for each dp."""
    follows(trial, TensorParallel.play, expected(case))


@requirement("tensor-parallel/hybrid-layout", *BOTH, Feature.HSDP, ranks=4)
@costly(2)
@example(case=replace(THREE_AXES, sharded=()))
@given(case=cases(meshes=HYBRID))
def test_hybrid_sharding_after_tensor_parallelism_lies_on_three_axes(trial: Trial, case: TensorParallelCase) -> None:
    """A parameter cut over tp, then hybrid-sharded, lies on (replicate, shard, tp), and is put together as it was."""
    finds(trial, TensorParallel.layouts, case, case.layouts)


@requirement("tensor-parallel/hybrid", *BOTH, Feature.HSDP, ranks=4)
@examples(on_each(THREE_AXES, HYBRID))
@given(case=cases(meshes=HYBRID, exact=True))
def test_hybrid_training_after_tensor_parallelism_is_exact(trial: Trial, case: TensorParallelCase) -> None:
    """On data whose sums are exact, MLPs cut over tp and hybrid-sharded train as the unsharded model, bit for bit."""
    follows(trial, TensorParallel.play, expected(case))


@requirement("tensor-parallel/free-dim", *BOTH, Feature.SHARD_PLACEMENT, ranks=2)
@given(case=cases(meshes=FLAT[:-1], exact=True, multiple=2, free=True))
def test_sharding_along_the_dim_that_tensor_parallelism_leaves_whole(trial: Trial, case: TensorParallelCase) -> None:
    """A placement function may choose the dim that tp leaves whole: both axes then cut it their way, and it trains."""
    finds(trial, TensorParallel.layouts, case, case.layouts)
    follows(trial, TensorParallel.play, expected(case))


@requirement("tensor-parallel/checkpoint", *BOTH, Feature.CHECKPOINT, ranks=2)
@costly(2)
@given(case=cases(exact=True, checkpointed=True))
def test_recomputing_after_tensor_parallelism_changes_nothing(trial: Trial, case: TensorParallelCase) -> None:
    """MLPs cut over tp and dp whose forwards are recomputed in backward train as the unsharded model, bit for bit."""
    follows(trial, TensorParallel.play, expected(case))


@requirement("tensor-parallel/offload", *BOTH, Feature.CPU_OFFLOAD, ranks=2)
@example(case=replace(SINGLE, offload=True))
@given(case=cases(exact=True, offload=True))
def test_offloaded_shards_of_tensor_parallel_parameters_train(trial: Trial, case: TensorParallelCase) -> None:
    """With CPU offload, shards and gradients of parameters cut over tp lie on the CPU, also where dp has one rank."""
    finds(trial, devices, case, ["cpu"])
    follows(trial, TensorParallel.play, expected(case))


@requirement("tensor-parallel/full-type", *BOTH, Feature.WRAP_POLICY, Feature.STATE_DICT, ranks=4)
@given(case=cases(meshes=FLAT[:1], exact=True))
def test_full_state_dicts_load_into_what_two_axes_cut(trial: Trial, case: TensorParallelCase) -> None:
    """Where tp cuts too, full state dicts by set_state_dict_type hold whole tensors, and load into all parts."""
    finds(trial, through_full_type, case, [dict(case.build().state_dict())] * 2)


@requirement("tensor-parallel/decoder", *BOTH, ranks=2)
@costly(2)
@example(case=DecoderCase(4, Stack(4, ("mlp",)), mesh=(2, 2)))
@given(case=decoder_cases())
def test_gradients_are_laid_out_as_their_parameters_before_reduction(trial: Trial, case: DecoderCase) -> None:
    """A gradient that tp left partial or whole is laid out as its parameter first: a decoder trains as unsharded."""
    follows(trial, ShardedDecoder.play, expected(case))


@requirement("tensor-parallel/reduce-dtype", *BOTH, Feature.MIXED_PRECISION, ranks=2)
@examples_first()
@examples(on_each(SINGLE, SHARED))
@given(case=cases(SHARED))
def test_parts_of_a_gradient_are_added_up_in_the_reduce_dtype(trial: Trial, case: TensorParallelCase) -> None:
    """What tp ranks add to the gradient of a parameter that each has whole is added up in reduce_dtype, as all else."""
    finds(trial, sums, case, right_sums(case))


@requirement("tensor-parallel/accumulation", *BOTH, Feature.MIXED_PRECISION, Feature.ACCUMULATION, ranks=2)
@examples_first()
@examples(on_each(SINGLE, SHARED))
@given(case=cases(SHARED))
def test_parts_of_gradients_that_wait_are_added_up(trial: Trial, case: TensorParallelCase) -> None:
    """Where an earlier pass waits, what tp ranks add to a gradient is added up in reduce_dtype as well."""
    finds(trial, sums, case, right_sums(case, 2), 2)


@requirement("tensor-parallel/by-turns", *BOTH, ranks=2)
@examples_first()
@examples(on_each(SINGLE, SHARED))
@given(case=cases(SHARED))
def test_passes_may_leave_parts_of_a_gradient_by_turns(trial: Trial, case: TensorParallelCase) -> None:
    """Passes may leave parts of a gradient on tp ranks, or all of it on each, by turns: gradients add up right."""
    for turns in TURNS:
        finds(trial, by_turns, case, right_by_turns(case, turns), turns)


@requirement("tensor-parallel/clip", *BOTH, ranks=2)
@given(case=norm_cases())
def test_the_norm_of_gradients_over_two_axes_is_that_of_the_whole(trial: Trial, case: NormCase) -> None:
    """clip_grad_norm_ of gradients over dp and tp finds the unsharded model's total norm, and clips as there."""
    clips(trial, case)


@requirement("tensor-parallel/scaler", *BOTH, ranks=2)
@given(case=norm_cases(spoilt=True))
def test_an_infinity_on_one_rank_of_two_axes_skips_the_step_on_all(trial: Trial, case: NormCase) -> None:
    """A gradient scaler unscales gradients over dp and tp, and on an infinity anywhere, every rank skips the step."""
    scales(trial, case)
