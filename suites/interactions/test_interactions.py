"""Features together: every pair of values of all dimensions, in scenarios of about ten special values each.

``suites/scenarios/dimensions.py`` has the dimensions, ``rules.py`` what cannot go together. After every action of a
scenario what it changes is compared with the unsharded model: losses, gradients, parameters, buffers, what the
optimizer keeps, and what sharded parameters say of themselves. If a scenario fails, all that is not needed for that is
left out, and the smallest combination of values that fails is reported. What some implementation is known to fail has
a requirement of its own.
"""

from __future__ import annotations

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.interactions.covering import scenarios
from suites.interactions.judging import follows, on_meshes
from suites.kit.strategies import costly, given
from suites.scenarios.dimensions import TWO_MESHES
from suites.scenarios.scenario import Scenario

SHARDED = Feature.FULLY_SHARD


@requirement("interactions/one-rank", SHARDED)
@on_meshes("1")
def test_features_work_together_on_one_rank(trial: Trial, case: Scenario) -> None:
    """On one rank any two features together train, save and load as the unsharded model does."""
    follows(trial, case)


@requirement("interactions/two-ranks", SHARDED, ranks=2)
@on_meshes("2")
def test_features_work_together_on_two_ranks(trial: Trial, case: Scenario) -> None:
    """On two ranks any two features together train, save and load as the unsharded model does."""
    follows(trial, case)


@requirement("interactions/three-ranks", SHARDED, ranks=3)
@on_meshes("3")
def test_features_work_together_on_three_ranks(trial: Trial, case: Scenario) -> None:
    """On three ranks any two features together train, save and load as the unsharded model does."""
    follows(trial, case)


@requirement("interactions/four-ranks", SHARDED, ranks=4)
@on_meshes("4")
def test_features_work_together_on_four_ranks(trial: Trial, case: Scenario) -> None:
    """On four ranks any two features together train, save and load as the unsharded model does."""
    follows(trial, case)


@requirement("interactions/replicas", SHARDED, Feature.HSDP, ranks=4)
@on_meshes("2x2")
def test_features_work_together_on_replicas_of_shards(trial: Trial, case: Scenario) -> None:
    """On two replicas of two shards any two features together train, save and load as the unsharded model does."""
    follows(trial, case)


@requirement("interactions/thin-meshes", SHARDED, Feature.HSDP, ranks=2)
@on_meshes("1x2", "2x1")
def test_features_work_together_on_thin_meshes(trial: Trial, case: Scenario) -> None:
    """On one replica of two shards, and two of one, any two features together work as with the unsharded model."""
    follows(trial, case)


@requirement("interactions/tensor-parallel", SHARDED, Feature.TENSOR_PARALLEL, ranks=2)
@on_meshes(parallelism="tensor")
def test_features_work_together_after_tensor_parallelism(trial: Trial, case: Scenario) -> None:
    """Where two ranks share a block by tensor parallelism, any two features together work as they do unsharded."""
    follows(trial, case)


@requirement("interactions/parameter-meshes", SHARDED, *TWO_MESHES, ranks=2)
@on_meshes(parallelism="two meshes")
def test_features_work_together_on_two_meshes(trial: Trial, case: Scenario) -> None:
    """Where some layers are sharded over all ranks beside replicas, any two features work as they do unsharded."""
    follows(trial, case)


@requirement("interactions/recomputed-for-two-losses", SHARDED, Feature.CHECKPOINT, ranks=2)
def test_two_losses_go_back_through_recomputed_blocks(trial: Trial) -> None:
    """Two losses may go back, one after the other, through blocks that are recomputed each time."""
    follows(trial, Scenario(recompute="block", gradients="two losses"))


@requirement("interactions/recomputed-with-hooks", SHARDED, Feature.CHECKPOINT, ranks=2)
def test_modules_with_hooks_are_recomputed(trial: Trial) -> None:
    """Blocks that are recomputed may have had hooks before that change their inputs and outputs."""
    follows(trial, Scenario(modules="hooks before", recompute="block"))


@requirement("interactions/columns-in-pairs", SHARDED, Feature.SHARD_PLACEMENT, Feature.RESHARD_TO_GROUP, ranks=4)
def test_columns_are_kept_in_groups_of_two(trial: Trial) -> None:
    """Parameters sharded by columns may be kept in smaller groups after forward."""
    follows(trial, Scenario(mesh="4", rows="columns", reshard="pairs"))


@requirement("interactions/runs-twice-re-entrant", SHARDED)
def test_a_module_may_run_twice_and_be_recomputed_by_re_entering_autograd(trial: Trial) -> None:
    """A sharded module may run twice in a forward with re-entrant recomputation of each run."""
    follows(trial, Scenario(mesh="1", runs="twice", recompute="reentrant"))


@requirement("interactions/state-between-of-pairs", SHARDED, Feature.RESHARD_TO_GROUP, Feature.PREFETCH, ranks=4)
@example(case=Scenario(mesh="4", wrapping="parts", runs="no grad", reshard="pairs", prefetch="forward", asked="before"))
@given(case=Scenario(mesh="4", wrapping="shared", reshard="pairs", prefetch="forward", asked="between"))
def test_state_may_be_asked_for_between_passes_of_smaller_groups(trial: Trial, case: Scenario) -> None:
    """A state dict may be asked for between a forward and the next pass of modules that are kept in smaller groups."""
    follows(trial, case)


@requirement("interactions/unused-and-frozen", SHARDED, Feature.UNUSED_PARAMETERS)
def test_what_is_frozen_and_unused_has_no_gradient(trial: Trial) -> None:
    """A frozen module that does not run has no gradient, also where unused parameters that train are given zeros."""
    follows(trial, Scenario(mesh="1", runs="skipped", reduction="unused too", life="frozen and thawed"))


@requirement(
    "interactions/unused-in-tensor-parallel", SHARDED, Feature.TENSOR_PARALLEL, Feature.UNUSED_PARAMETERS, ranks=4
)
def test_what_ranks_share_and_no_run_uses_has_zeros(trial: Trial) -> None:
    """Where unused parameters are given zeros, so are those that two ranks share by tensor parallelism."""
    follows(trial, Scenario(mesh="4", parallelism="tensor", wrapping="root", runs="skipped", reduction="unused too"))


@requirement("interactions/outputs-of-recomputed", SHARDED, Feature.MIXED_PRECISION, Feature.OUTPUT_DTYPE, ranks=2)
def test_recomputed_outputs_have_their_dtype(trial: Trial) -> None:
    """Where a part of a block that is recomputed runs twice, what the rest is given has output_dtype each time."""
    follows(trial, Scenario(wrapping="parts", runs="twice", dtype="output", recompute="around"))


@requirement("interactions/gathers-in-vain", SHARDED, ranks=2, limits=("streams",))
@example(case=Scenario(runs="skipped", reshard="changed", prefetch="backward", gradients="two losses"))
@example(case=Scenario(prefetch="finished", gradients="two losses"))
@example(case=Scenario(wrapping="parts", reshard="never", prefetch="backward", gradients="two losses"))
@example(case=Scenario(wrapping="parts", reshard="changed", prefetch="both", update="hooks"))
@given(case=Scenario(wrapping="wrapper", runs="eval", gradients="two losses"))
def test_what_is_gathered_in_vain_keeps_its_memory_until_it_is_there(trial: Trial, case: Scenario) -> None:
    """Memory into which backward gathers what nothing needs is not used again before that gather is done."""
    follows(trial, case)


@requirement("interactions/gathers-what-stepped", SHARDED, Feature.PREFETCH, ranks=2, limits=("streams",))
@example(case=Scenario(wrapping="list", recompute="reentrant", update="hooks"))
@given(case=Scenario(prefetch="finished", update="hooks"))
def test_what_has_stepped_in_backward_is_gathered_after_its_step(trial: Trial, case: Scenario) -> None:
    """What takes its optimizer step in backward, and is gathered after that, is read once it has."""
    follows(trial, case)


@requirement("interactions/any", SHARDED)
@costly(4)
@given(case=scenarios())
def test_any_features_work_together(trial: Trial, case: Scenario) -> None:
    """Whatever goes together trains, saves and loads as the unsharded model does."""
    follows(trial, case)
