"""Data axes by name: parameters are DTensors on one mesh of all axes, and some axes are said to be for data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack
from suites.kit.parallel import parallel_cases
from suites.oracle.expected import expected
from suites.oracle.judging import finds, trains
from suites.parallelism import spmd_faults
from suites.parallelism.spmd import (
    DDP,
    FSDP,
    HYBRID,
    TWO_NAMES,
    WITH_TP,
    SpmdCase,
    layouts,
    train_in_groups,
    train_spmd,
    unused,
)

OWN = (Feature.FULLY_SHARD, Feature.SPMD_MESH)
#: MLPs of integers; none has a buffer, which would be no DTensor.
cases = partial(parallel_cases, kind=SpmdCase, exact=True, blocks=("mlp",))
FIXED = SpmdCase(world_size=2, net=Stack(2, ("mlp",), 1))
#: Tried before any drawn case: rows that ranks do not divide, in the dtype that may be averaged on the way.
RICH = replace(FIXED, net=Stack(3, ("mlp",), 2), exact=True, steps=1)
REPLICAS = SpmdCase(world_size=2, net=Stack(2, ("mlp",), 1), shard=(), replicate=("dp",))


@requirement("spmd-mesh/layout", *OWN, ranks=2)
@given(case=cases(meshes=[*FSDP, *DDP]))
def test_parameters_stay_on_their_mesh_and_are_cut_over_the_named_axis(trial: Trial, case: SpmdCase) -> None:
    """Parameters stay on their mesh, cut along dim 0 over an axis named to shard and whole on one of replicas."""
    finds(trial, layouts, case, case.layouts)


@requirement("spmd-mesh/layout-hybrid", *OWN, Feature.HSDP, ranks=4)
@given(case=cases(meshes=HYBRID))
def test_of_two_named_axes_one_cuts_and_one_replicates(trial: Trial, case: SpmdCase) -> None:
    """With one axis named to shard and one to replicate, parameters are cut over the first and whole on the second."""
    finds(trial, layouts, case, case.layouts)


@requirement("spmd-mesh/layout-tp", *OWN, Feature.TENSOR_PARALLEL, ranks=4)
@example(case=replace(RICH, world_size=4, axes=("dp", "tp"), mesh=(2, 2)))
@given(case=cases(meshes=WITH_TP))
def test_what_tensor_parallelism_cut_is_cut_again_over_data_axes(trial: Trial, case: SpmdCase) -> None:
    """A parameter cut over tp stays so, its parts are cut over an axis named to shard, and put together it is whole."""
    finds(trial, layouts, case, case.layouts)


@requirement("spmd-mesh/two-names", *OWN, ranks=4)
@given(case=cases(meshes=TWO_NAMES))
def test_several_names_act_as_one_axis(trial: Trial, case: SpmdCase) -> None:
    """Several axes named to shard cut a parameter as one axis of all their ranks would, the first counting most."""
    for number, got in enumerate(trial.run(layouts, case)):
        came = {key: {name: facts[key] for name, facts in got.items()} for key in ("local", "full")}
        trial.agree(f"rank {number}", came, {"local": case.parts(number), "full": case.full()})


@requirement("spmd-mesh/training", *OWN, ranks=2)
@example(case=RICH)
@given(case=cases(meshes=[*FSDP, *DDP]))
def test_training_over_a_named_axis_is_the_unsharded_models(trial: Trial, case: SpmdCase) -> None:
    """Gradients are averaged over the named axis, whether it shards or replicates: training is exact."""
    trains(trial, train_spmd, case)


@requirement("spmd-mesh/training-hybrid", *OWN, Feature.HSDP, ranks=4)
@example(
    case=SpmdCase(
        4,
        Stack(1, ("mlp",), bias=False),
        dtype="float64",
        exact=True,
        reshard_after_forward=True,
        steps=1,
        batch=1,
        axes=("replicate", "shard"),
        mesh=(2, 2),
        shard=("shard",),
        replicate=("replicate",),
    )
)
@given(case=cases(meshes=[*HYBRID, *TWO_NAMES]))
def test_training_over_several_named_axes_is_the_unsharded_models(trial: Trial, case: SpmdCase) -> None:
    """Gradients are averaged over all named axes, several to shard or to replicate among them: training is exact."""
    trains(trial, train_spmd, case)


@requirement("spmd-mesh/training-tp", *OWN, Feature.TENSOR_PARALLEL, ranks=4)
@given(case=cases(meshes=WITH_TP))
def test_gradients_are_not_averaged_over_axes_without_data(trial: Trial, case: SpmdCase) -> None:
    """Gradients are averaged over the named axes and not over tp, wherever tp stands in the mesh: training is exact."""
    trains(trial, train_spmd, case)


@requirement("spmd-mesh/groups", *OWN, Feature.RESHARD_TO_GROUP, ranks=4)
@given(case=cases(meshes=[FSDP[1]], reshard_after_forward=2))
def test_resharding_to_groups_of_a_named_axis_is_refused_or_right(trial: Trial, case: SpmdCase) -> None:
    """An int for reshard_after_forward with named axes is refused with NotImplementedError or trains right."""
    want = expected(case)
    for number, got in enumerate(trial.run(train_in_groups, case)):
        trial.agree(f"rank {number}", got, got if "refused" in got else {"trace": want.trace(number)})


@requirement("spmd-mesh/unused", *OWN, Feature.UNUSED_PARAMETERS, ranks=2)
@given(case=cases(meshes=[*FSDP, WITH_TP[0]], spare=True, sharded=(), net=Stack(2, ("mlp", "mlp"), 2)))
def test_an_unused_parameter_on_the_mesh_gets_zeros(trial: Trial, case: SpmdCase) -> None:
    """With reduction of unused parameters, a DTensor parameter unused in a group that ran gets a gradient of zeros."""
    for number, got in enumerate(trial.run(unused, case)):
        want = {name: torch.zeros_like(part) for name, part in case.parts(number).items() if name.startswith("1.")}
        trial.agree(f"rank {number}", {name: got[name] for name in want}, want)


NAMES: list[Any] = [
    ("no_names", "shard.*replicate"),
    ("unknown_name", "elsewhere"),
    ("nameless_mesh", "mesh_dim_names"),
]


@requirement("spmd-mesh/refuses-names", *OWN, ranks=2)
@pytest.mark.parametrize(("fault", "match"), NAMES)
def test_names_that_the_mesh_has_not_got_are_refused(trial: Trial, fault: str, match: str) -> None:
    """No name at all, a name of no axis of the mesh, and a mesh without names raise ValueError that says which."""
    trial.refuses(getattr(spmd_faults, fault), FIXED, error="ValueError", match=match)


PARAMETERS: list[Any] = [
    ("plain_parameters", "DTensors"),
    ("cut_parameters", "Replicate"),
    ("other_mesh", "same mesh"),
]


@requirement("spmd-mesh/refuses-parameters", *OWN, ranks=2)
@pytest.mark.parametrize(("fault", "match"), PARAMETERS)
def test_parameters_that_are_not_whole_on_the_mesh_are_refused(trial: Trial, fault: str, match: str) -> None:
    """Plain parameters, parameters cut over a data axis, and those on another mesh raise ValueError that says so."""
    trial.refuses(getattr(spmd_faults, fault), FIXED, error="ValueError", match=match)


@requirement("spmd-mesh/refuses-placement", *OWN, Feature.SHARD_PLACEMENT, ranks=2)
def test_a_placement_function_for_replicas_is_refused(trial: Trial) -> None:
    """A placement function raises ValueError that names it, where all named axes replicate and nothing is cut."""
    trial.refuses(spmd_faults.placed_replicas, REPLICAS, error="ValueError", match="shard_placement_fn")


@requirement("spmd-mesh/refuses-replicate", *OWN, Feature.REPLICATE_FSDP, ranks=2)
def test_replicate_refuses_an_axis_named_to_shard(trial: Trial) -> None:
    """replicate with an axis named to shard raises ValueError that asks for axes to replicate only."""
    trial.refuses(spmd_faults.replicate_by_shards, FIXED, error="ValueError", match="replicate.only")
