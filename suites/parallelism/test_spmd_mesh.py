"""Data axes by name: parameters are DTensors on one mesh of all axes, and some axes are said to be for data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack
from suites.kit.parallel import on_each, parallel_cases
from suites.kit.strategies import examples, given
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows, follows_or_refuses
from suites.parallelism.spmd import DDP, FSDP, HYBRID, TWO_NAMES, WITH_TP, Spmd, SpmdCase

OWN = (Feature.FULLY_SHARD, Feature.SPMD_MESH)
#: MLPs of integers; none has a buffer, which would be no DTensor.
cases = partial(parallel_cases, kind=SpmdCase, exact=True, blocks=("mlp",))
FIXED = SpmdCase(world_size=2, net=Stack(2, ("mlp",), 1))
#: Tried before any drawn case: rows that ranks do not divide, in the dtype that may be averaged on the way.
RICH = replace(FIXED, net=Stack(3, ("mlp",), 2), exact=True, steps=1)
REPLICAS = replace(FIXED, shard=(), replicate=("dp",))
#: Two axes besides dp cut the same dim, so that along dp rows are strided by four.
CUT_TWICE = replace(FIXED, world_size=8, net=Stack(3, ("mlp",), 4), axes=("dp", "tp", "ep"), mesh=(2, 2, 2))
#: Two axes named to shard act as one, beside one that is not for data.
TWO_AND_TP = replace(RICH, world_size=4, axes=("dp", "cp", "tp"), mesh=(2, 1, 2), shard=("dp", "cp"))


@requirement("spmd-mesh/layout", *OWN, ranks=2)
@examples(on_each(RICH, [*FSDP, *DDP]))
@given(case=cases(meshes=[*FSDP, *DDP]))
def test_parameters_stay_on_their_mesh_and_are_cut_over_the_named_axis(trial: Trial, case: SpmdCase) -> None:
    """Parameters stay on their mesh, cut along dim 0 over an axis named to shard and whole on one of replicas."""
    finds(trial, Spmd.layouts, case, case.layouts)


@requirement("spmd-mesh/layout-hybrid", *OWN, Feature.HSDP, ranks=4)
@examples(on_each(RICH, HYBRID))
@given(case=cases(meshes=HYBRID))
def test_of_two_named_axes_one_cuts_and_one_replicates(trial: Trial, case: SpmdCase) -> None:
    """With one axis named to shard and one to replicate, parameters are cut over the first and whole on the second."""
    finds(trial, Spmd.layouts, case, case.layouts)


@requirement("spmd-mesh/layout-tp", *OWN, Feature.TENSOR_PARALLEL, ranks=4)
@examples([*on_each(RICH, WITH_TP), CUT_TWICE])
@given(case=cases(meshes=WITH_TP))
def test_what_tensor_parallelism_cut_is_cut_again_over_data_axes(trial: Trial, case: SpmdCase) -> None:
    """A parameter cut over tp stays so, its parts are cut over an axis named to shard, and put together it is whole."""
    finds(trial, Spmd.layouts, case, case.layouts)


@requirement("spmd-mesh/two-names", *OWN, ranks=4)
@examples([*on_each(RICH, TWO_NAMES), TWO_AND_TP])
@given(case=cases(meshes=TWO_NAMES))
def test_several_names_act_as_one_axis(trial: Trial, case: SpmdCase) -> None:
    """Several axes named to shard cut a parameter as one axis of all their ranks would, the first counting most."""
    for number, got in enumerate(trial.run(Spmd.layouts, case)):
        came = {key: {name: facts[key] for name, facts in got.items()} for key in ("local", "full")}
        trial.agree(f"rank {number}", came, {"local": case.parts(number), "full": case.full()})


@requirement("spmd-mesh/training", *OWN, ranks=2)
@examples(on_each(RICH, [*FSDP, *DDP]))
@given(case=cases(meshes=[*FSDP, *DDP]))
def test_training_over_a_named_axis_is_the_unsharded_models(trial: Trial, case: SpmdCase) -> None:
    """Gradients are averaged over the named axis, whether it shards or replicates: training is exact."""
    follows(trial, Spmd.play, expected(case))


@requirement("spmd-mesh/replicate", *OWN, Feature.REPLICATE_FSDP, ranks=2)
@examples(on_each(replace(RICH, replicates=True), [*DDP, TWO_NAMES[1]]))
@given(case=cases(meshes=[*DDP, TWO_NAMES[1]], replicates=True))
def test_replicas_over_named_axes_train_as_the_unsharded_model(trial: Trial, case: SpmdCase) -> None:
    """replicate with names of axes averages gradients over these, as fully_shard does: training is exact."""
    follows(trial, Spmd.play, expected(case))


@requirement("spmd-mesh/training-hybrid", *OWN, Feature.HSDP, ranks=4)
@examples(on_each(RICH, [*HYBRID, *TWO_NAMES]))
@given(case=cases(meshes=[*HYBRID, *TWO_NAMES]))
def test_training_over_several_named_axes_is_the_unsharded_models(trial: Trial, case: SpmdCase) -> None:
    """Gradients are averaged over all named axes, several to shard or to replicate among them: training is exact."""
    follows(trial, Spmd.play, expected(case))


@requirement("spmd-mesh/training-tp", *OWN, Feature.TENSOR_PARALLEL, ranks=4)
@examples([*on_each(RICH, WITH_TP), TWO_AND_TP])
@given(case=cases(meshes=WITH_TP))
def test_gradients_are_not_averaged_over_axes_without_data(trial: Trial, case: SpmdCase) -> None:
    """Gradients are averaged over the named axes and not over tp, wherever tp stands in the mesh: training is exact."""
    follows(trial, Spmd.play, expected(case))


@requirement("spmd-mesh/groups", *OWN, Feature.RESHARD_TO_GROUP, ranks=4)
@example(case=replace(RICH, world_size=4, mesh=(4,), dtype="float64", reshard_after_forward=2, steps=2))
@given(case=cases(meshes=[FSDP[1]], reshard_after_forward=2))
def test_resharding_to_groups_of_a_named_axis_is_refused_or_right(trial: Trial, case: SpmdCase) -> None:
    """An int for reshard_after_forward with named axes is refused by an error that names it, or trains right."""
    follows_or_refuses(trial, Spmd.play, expected(case), "reshard_after_forward")


@requirement("spmd-mesh/unused", *OWN, Feature.UNUSED_PARAMETERS, ranks=2)
@given(case=cases(meshes=[*FSDP, WITH_TP[0]], spare=True, sharded=(), net=Stack(2, ("mlp", "mlp"), 2)))
def test_an_unused_parameter_on_the_mesh_gets_zeros(trial: Trial, case: SpmdCase) -> None:
    """With reduction of unused parameters, a DTensor parameter unused in a group that ran gets a gradient of zeros."""
    follows(trial, Spmd.play, expected(case))


@requirement("spmd-mesh/refuses-names", *OWN, ranks=2)
@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ("no name", ("shard", "replicate", "dp_mesh_dims")),
        ("unknown name", ("elsewhere",)),
        ("nameless mesh", ("mesh_dim_names", "name", "named")),
    ],
)
def test_names_that_the_mesh_has_not_got_are_refused(trial: Trial, wrong: str, names: tuple[str, ...]) -> None:
    """No name at all, a name of no axis of the mesh, and a mesh without names raise an error that says which."""
    trial.refuses(Spmd.play, replace(FIXED, wrong=wrong), *names)


@requirement("spmd-mesh/refuses-parameters", *OWN, ranks=2)
@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ("plain parameters", ("parameter", "plain", "dp_mesh_dims")),
        ("cut already", ("Replicate", "replicated", "placement")),
        ("on another mesh", ("mesh",)),
    ],
)
def test_parameters_that_are_not_whole_on_the_mesh_are_refused(
    trial: Trial, wrong: str, names: tuple[str, ...]
) -> None:
    """Plain parameters, parameters cut over a data axis, and those on another mesh raise an error that says so."""
    trial.refuses(Spmd.play, replace(FIXED, wrong=wrong), *names)


@requirement("spmd-mesh/refuses-placement", *OWN, Feature.SHARD_PLACEMENT, ranks=2)
def test_a_placement_function_for_replicas_is_refused(trial: Trial) -> None:
    """A placement function raises an error that names it, where all named axes replicate and nothing is cut."""
    trial.refuses(Spmd.play, replace(REPLICAS, wrong="placed replicas"), "shard_placement_fn", "placement")
