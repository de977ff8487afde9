"""Meshes of single parameters: experts sharded over the ranks that have them, and all else over all ranks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack
from suites.kit.expected_collectives import tallied
from suites.kit.strategies import examples, given
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows, follows_or_refuses, sees
from suites.oracle.situation import PASS, SUMS
from suites.parameters.experts import (
    SIZES,
    DescribedApart,
    ExpertCase,
    ShardedExperts,
    calls_of,
    expert_cases,
    reduced_when_deferred,
)

OWN = (Feature.FULLY_SHARD, Feature.SHARD_PLACEMENT, Feature.PARAMETER_MESH, Feature.ROW_LAYOUT)
#: Two experts in a stack, each cut over two ranks, of which each has two rows of it.
STACKED = ExpertCase(4, Stack(4, ("mlp",)), exact=True, steps=1, cut=1, stacked=True)

SMALL = ExpertCase(2, Stack(2, ("mlp",)), exact=True, steps=1)


@requirement("parameter-mesh/layout", *OWN, ranks=2)
@example(case=replace(SMALL, says="mesh alone"))
@given(case=expert_cases())
def test_every_parameter_lies_on_the_mesh_that_its_placement_names(trial: Trial, case: ExpertCase) -> None:
    """Each parameter is cut, as its placement says, over the mesh that its placement names, and put together there."""
    sees(trial, ShardedExperts, case, (), layouts=case.layouts)


@requirement("parameter-mesh/stacked-layout", *OWN, Feature.TENSOR_PARALLEL, ranks=4)
@example(case=STACKED)
@given(case=expert_cases(stacked=True))
def test_stacks_of_experts_lie_on_both_axes(trial: Trial, case: ExpertCase) -> None:
    """A stack of experts cut over ep and then over the ranks of each lies on both axes, and is put together whole."""
    sees(trial, ShardedExperts, case, (), layouts=case.layouts)


@requirement("parameter-mesh/training", *OWN, ranks=2)
@given(case=expert_cases())
def test_gradients_are_averaged_over_the_mesh_of_each_parameter(trial: Trial, case: ExpertCase) -> None:
    """An expert's gradients are averaged over the ranks that have it and others over all: training is the unsharded."""
    follows(trial, ShardedExperts.play, expected(case))


@requirement("parameter-mesh/replicas", *OWN, Feature.HSDP, ranks=2)
@given(case=expert_cases(replicated=True))
def test_experts_may_lie_beside_replicas_of_shards(trial: Trial, case: ExpertCase) -> None:
    """Experts sharded over the ranks of a replica, and all else over these and all replicas, train as unsharded."""
    follows(trial, ShardedExperts.play, expected(case))


@requirement("parameter-mesh/crossing", *OWN, Feature.HSDP, Feature.SEPARATE_GROUP, ranks=4)
@given(case=expert_cases(replicated=True, sizes=((4, 2),), across=True))
def test_meshes_of_one_module_may_cross(trial: Trial, case: ExpertCase) -> None:
    """Parameters cut over meshes of one size that cross train as unsharded, also if reductions have other groups."""
    follows(trial, ShardedExperts.play, expected(case))
    acts = ("set separate_reduce_scatter_group True in each", *case.actions)
    follows(trial, ShardedExperts.play, expected(replace(case, acts=acts)))


@requirement("parameter-mesh/stacked-training", *OWN, Feature.TENSOR_PARALLEL, ranks=2)
@given(case=expert_cases(stacked=True))
def test_stacks_of_experts_train_as_the_unsharded_model(trial: Trial, case: ExpertCase) -> None:
    """Experts in one stack, cut over ep and over the ranks of each, train as the unsharded model, bit for bit."""
    follows(trial, ShardedExperts.play, expected(case))


@requirement("parameter-mesh/groups", *OWN, Feature.RESHARD_TO_GROUP, ranks=4)
@given(case=expert_cases(sizes=((4, 2),), reshard_after_forward=2))
def test_each_mesh_reshards_to_groups_of_its_own(trial: Trial, case: ExpertCase) -> None:
    """Shards over groups of two between forward and backward, on the mesh of each parameter, change no number."""
    follows(trial, ShardedExperts.play, expected(case))


@requirement("parameter-mesh/by-hand", *OWN, ranks=2)
@given(case=expert_cases(sharded=()))
def test_unshard_and_reshard_act_on_all_meshes_of_a_module(trial: Trial, case: ExpertCase) -> None:
    """unshard of a module makes its parameters of all meshes full, and reshard cuts all of them again."""
    sees(trial, ShardedExperts, case, ("unshard",), parameters=case.owns)
    sees(trial, ShardedExperts, case, ("unshard", "reshard"), parameters=case.parts)


@requirement("parameter-mesh/after-forward", *OWN, Feature.RESHARD_AFTER_FORWARD, ranks=2)
@given(case=expert_cases(sharded=()))
def test_all_meshes_of_a_module_are_resharded_after_forward_or_none(trial: Trial, case: ExpertCase) -> None:
    """After forward, parameters of all meshes are full with reshard_after_forward=False, and cut if it is True then."""
    sees(trial, ShardedExperts, replace(case, reshard_after_forward=False), ("forward",), parameters=case.owns)
    sees(trial, ShardedExperts, replace(case, reshard_after_forward=True), ("forward",), parameters=case.parts)
    later = ("set reshard_after_forward True", "forward")
    sees(trial, ShardedExperts, replace(case, reshard_after_forward=False), later, parameters=case.parts)


@requirement("parameter-mesh/accumulation", *OWN, Feature.ACCUMULATION, ranks=2)
@given(case=expert_cases(steps=1))
def test_gradients_accumulate_on_all_meshes(trial: Trial, case: ExpertCase) -> None:
    """Without synchronisation nothing is reduced over any mesh, and the next backward reduces the sum of both."""
    finds(trial, reduced_when_deferred, case, tallied([]))
    acts = ("defer gradient_sync", *PASS, "resume gradient_sync", *PASS)
    follows(trial, ShardedExperts.play, expected(replace(case, acts=acts)))


@requirement("parameter-mesh/divide-factor", *OWN, Feature.DIVIDE_FACTOR, Feature.FORCE_SUM, ranks=4)
@given(case=expert_cases(steps=1, sizes=((4, 2),)))
def test_a_factor_divides_the_sums_of_all_meshes(trial: Trial, case: ExpertCase) -> None:
    """set_gradient_divide_factor(f) of every module divides what is reduced over each of its meshes by f."""
    acts = (SUMS, "set gradient_divide_factor 4.0 in each", *PASS)
    follows(trial, ShardedExperts.play, expected(replace(case, acts=acts)))


@requirement("parameter-mesh/adds", *OWN, ranks=2)
@examples([replace(SMALL, world_size=ranks, ep=experts) for ranks, experts in dict.fromkeys(SIZES)])
@given(case=expert_cases(steps=1))
def test_reduced_gradients_add_up_on_all_meshes(trial: Trial, case: ExpertCase) -> None:
    """Two passes that are both reduced add their gradients, also of experts that no other rank has."""
    follows(trial, ShardedExperts.play, expected(replace(case, acts=(*PASS, *PASS))))


@requirement("parameter-mesh/descriptions", *OWN, ranks=2)
@given(case=expert_cases())
def test_several_descriptions_of_one_mesh_are_refused_or_right(trial: Trial, case: ExpertCase) -> None:
    """Parameters given several descriptions of one mesh either are refused or train right."""
    follows_or_refuses(trial, DescribedApart.play, expected(case), "FSDPMeshInfo", "mesh_info", "mesh")


@requirement("parameter-mesh/own-gather", *OWN, Feature.CUSTOM_COLLECTIVES, Feature.ONE_MESSAGE, ranks=2)
@given(case=expert_cases(sharded=()))
def test_an_all_gather_of_ones_own_is_refused_or_used_on_all_meshes(trial: Trial, case: ExpertCase) -> None:
    """On a module whose parameters have several meshes, a custom all-gather is refused or serves each mesh."""
    is_refused_or_called_twice(trial, case, "set_custom_all_gather")


@requirement("parameter-mesh/own-hook", *OWN, Feature.ALL_REDUCE_HOOK, Feature.ONE_MESSAGE, ranks=2)
@given(case=expert_cases(sharded=()))
def test_a_hook_after_reduction_is_refused_or_called_for_all_meshes(trial: Trial, case: ExpertCase) -> None:
    """On a module whose parameters have several meshes, an all-reduce hook is refused or runs for each mesh."""
    is_refused_or_called_twice(trial, case, "set_all_reduce_hook")


def is_refused_or_called_twice(trial: Trial, case: ExpertCase, setter: str) -> None:
    """Require one of the two of what is set."""
    for number, got in enumerate(trial.run(calls_of, case, setter)):
        right = got in ("refused, and called 0 times", "taken, and called 2 times")
        trial.holds(right, f"rank {number}: expected it refused and not called, or called twice: {got}")
