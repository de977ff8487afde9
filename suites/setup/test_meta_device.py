"""The meta device: nets are built and sharded without memory, given memory, filled, and trained."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial, refused
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.kit.cases import NetCase, Stack
from suites.kit.strategies import costly
from suites.oracle.judging import trains
from suites.oracle.layout import shard
from suites.parallelism.two_axes import TwoAxisCase, placements, two_axis_cases
from suites.setup import meta_two_axes
from suites.setup.meta import (
    MetaCase,
    forward_too_early,
    layouts_on_device,
    layouts_on_meta,
    left_unwritten,
    meta_cases,
    names_in,
    names_left_on_meta,
    step_after_reset,
    train_materialized,
)

TWO_AXES = (Feature.FULLY_SHARD, Feature.META_DEVICE, Feature.TENSOR_PARALLEL)


@requirement("meta/sharding-keeps-meta", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_parameters_sharded_on_meta_stay_there_as_dtensors(trial: Trial, case: MetaCase) -> None:
    """Parameters sharded on meta stay on meta, as DTensors placed and cut as on a device, with any mesh."""
    for number, got in enumerate(trial.run(layouts_on_meta, case)):
        trial.agree(f"rank {number}", got, layouts(case, number, "meta"))


@requirement("meta/to-empty", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_to_empty_gives_every_shard_memory_on_the_device(trial: Trial, case: MetaCase) -> None:
    """After to_empty every parameter lies on the device, as a DTensor of the same size, placements and rows."""
    for number, got in enumerate(trial.run(layouts_on_device, case)):
        trial.agree(f"rank {number}", got, layouts(case, number, "the device"))


@requirement("meta/reset-parameters", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_reset_parameters_writes_every_shard(trial: Trial, case: MetaCase) -> None:
    """After to_empty, reset_parameters of each module writes every element of every shard and every buffer."""
    everything_is_written(trial, left_unwritten, case)


@requirement("meta/step-after-reset", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_one_step_runs_after_reset_parameters(trial: Trial, case: MetaCase) -> None:
    """Training starts from reset parameters: the loss is finite, and a step moves every element that has a gradient."""
    want = {"finite": True, "without gradient": [], "stuck": []}
    for number, got in enumerate(trial.run(step_after_reset, case)):
        trial.agree(f"rank {number}", got, want)


@requirement("meta/training", Feature.FULLY_SHARD, Feature.META_DEVICE, ranks=2, source="C13")
@given(case=meta_cases(at_least=2, exact=True))
def test_a_net_from_meta_trains_as_the_unsharded_model(trial: Trial, case: MetaCase) -> None:
    """With weights written into its shards, a net that began on meta trains as the unsharded model, bit for bit."""
    trains(trial, train_materialized, case)


@requirement("meta/forward-is-refused", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C15")
@given(case=meta_cases(given=True))
def test_forward_is_refused_while_parameters_are_on_meta(trial: Trial, case: MetaCase) -> None:
    """Forward raises a RuntimeError about the meta device while any parameter is still there."""
    trial.refuses(forward_too_early, case, "RuntimeError", "meta device")


@requirement("meta/refusal-names-parameters", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C15")
@given(case=meta_cases(given=True))
def test_the_refusal_names_the_parameters_that_are_on_meta(trial: Trial, case: MetaCase) -> None:
    """The error names exactly the parameters still on meta of the group that comes first, and none that has memory."""
    for number, refusal in enumerate(trial.run(refused, case, forward_too_early)):
        named = names_in(refusal["message"], case) if refusal else []
        trial.agree(f"rank {number}, parameters named", named, names_left_on_meta(case))


@requirement("meta/2d-sharding-keeps-meta", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases())
def test_parameters_cut_by_two_axes_on_meta_stay_there(trial: Trial, case: TwoAxisCase) -> None:
    """After tensor parallelism and fully_shard on meta, parameters are DTensors on meta, cut by both axes."""
    for number, got in enumerate(trial.run(meta_two_axes.layouts_on_meta, case)):
        trial.agree(f"rank {number}", got, layouts_2d(case, number, "meta"))


@requirement("meta/2d-to-empty", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases())
def test_to_empty_gives_parts_cut_by_two_axes_memory(trial: Trial, case: TwoAxisCase) -> None:
    """After to_empty, parameters cut by tensor parallelism and fully_shard lie on the device, cut as before."""
    for number, got in enumerate(trial.run(meta_two_axes.layouts_on_device, case)):
        trial.agree(f"rank {number}", got, layouts_2d(case, number, "the device"))


@requirement("meta/2d-reset-parameters", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases())
def test_reset_parameters_writes_parts_cut_by_two_axes(trial: Trial, case: TwoAxisCase) -> None:
    """Under tensor parallelism too, reset_parameters of each module writes every element of every shard and buffer."""
    everything_is_written(trial, meta_two_axes.left_unwritten, case)


@requirement("meta/2d-training", *TWO_AXES, ranks=2, source="C14")
@costly(2)
@example(case=TwoAxisCase(4, Stack(3, ("mlp",)), (0,), "float32", exact=True, steps=1, tp=2))
@given(case=two_axis_cases(exact=True, dims=(1, 5)))
def test_a_tensor_parallel_net_from_meta_trains_as_the_unsharded_model(trial: Trial, case: TwoAxisCase) -> None:
    """With weights written into its parts, a tensor-parallel net that began on meta trains as the unsharded model."""
    trains(trial, meta_two_axes.train_materialized, case)


def everything_is_written(trial: Trial, program: Program, case: NetCase) -> None:
    """Require that no parameter and no buffer keeps an element of what was there before."""
    net = case.build()
    names = [*dict(net.named_parameters()), *dict(net.named_buffers())]
    for number, got in enumerate(trial.run(program, case)):
        trial.agree(f"rank {number}, left unwritten", got, dict.fromkeys(names, False))


def layouts(case: MetaCase, number: int, where: str) -> dict[str, Any]:
    """What rank ``number`` must find of every parameter."""
    named = case.net.build().named_parameters()
    return {name: layout(p, ["Shard(0)"], shard(p, case.shards, number), where) for name, p in named}


def layouts_2d(case: TwoAxisCase, number: int, where: str) -> dict[str, Any]:
    """The same where two axes cut."""
    named = case.net.build().named_parameters()
    return {name: layout(p, placements(name), case.part(number, name, p), where) for name, p in named}


def layout(full: Tensor, placed: list[str], part: Tensor, where: str) -> dict[str, Any]:
    """A DTensor on the mesh that was given."""
    return {
        "type": "DTensor",
        "on the mesh": True,
        "placements": placed,
        "size": list(full.size()),
        "local size": list(part.size()),
        "lies on": where,
    }
