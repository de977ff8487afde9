"""Generated models: trees of blocks cut into any groups train as the unsharded model does.

Everything is compared: each micro-batch's loss, every gradient or its absence, every parameter after the step, the
buffers that are each rank's own, and the dtypes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.generated.net_cases import GeneratedCase, Group
from suites.generated.net_programs import ShardedNet
from suites.generated.net_strategies import (
    PURE,
    ahead_cases,
    branched_cases,
    checkpointed_cases,
    frozen_nets,
    generated_cases,
    leaves,
    nested_cases,
    nets_with,
    shared_nets,
    twices,
)
from suites.kit.hsdp import hsdp_meshes
from suites.kit.nets import NAMED, Block, Named, Net
from suites.kit.strategies import given, world_sizes
from suites.oracle.expected import expected
from suites.oracle.judging import follows, follows_or_refuses
from suites.oracle.situation import UNUSED_TOO

SHARDED = Feature.FULLY_SHARD
ROOT = Group()
LINEAR, MLP = Block("linear"), Block("mlp")
TIED = Net(3, (LINEAR, Block("attention"), LINEAR), shared=(("blocks.2.weight", "blocks.0.weight"),))
FROZEN = Net(3, (LINEAR, Block("frozen"), LINEAR), frozen=("blocks.0", "blocks.2.weight"))
#: Second and third, and counted from the end.
OTHER_DIMS = st.sampled_from([1, 2, -1, -2])
CONVOLUTION = Net(4, (Block("convolution"),))
BRANCHED = (LINEAR, Block("branches", (LINEAR, Block("uneven"))))
TWICE = (Block("twice", (Block("residual", (LINEAR,)),)), LINEAR)


def cut(net: Net | Named | tuple[Block, ...], *calls: str | tuple[str, ...], **fields: Any) -> GeneratedCase:
    """A net, or one of these blocks, on two ranks; each name or list is a call of ``fully_shard`` before the root's."""
    groups = [Group((call,) if isinstance(call, str) else call) for call in calls]
    whole = Net(3, net) if isinstance(net, tuple) else net
    return GeneratedCase(**{"world_size": 2, "net": whole, "groups": (*groups, ROOT), **fields})


@requirement("generated/nets", SHARDED, ranks=2)
@example(
    case=cut(
        Net(3, (LINEAR, Block("residual", (LINEAR, Block("attention"))), Block("uneven")), "dict"),
        ("blocks.0", "blocks.2"), "blocks.1.blocks.0", "blocks.1",
    )
)  # fmt: skip
@given(case=generated_cases(world_size=world_sizes(2)))
def test_generated_nets_follow_the_unsharded_model(trial: Trial, case: GeneratedCase) -> None:
    """Any net, cut into any groups, alone or by lists, trains on its ranks as the unsharded model does."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/stressed", SHARDED, ranks=2)
@example(case=cut(Named("structured"), "left", "right"))
@example(case=cut(Named("mixed dtypes"), "wide", dtype="float32"))
@given(case=st.sampled_from(sorted(NAMED)).flatmap(lambda name: generated_cases(nets=st.just(Named(name)))))
def test_nets_of_one_stress_each_follow_the_unsharded_model(trial: Trial, case: GeneratedCase) -> None:
    """Nets that stress one thing each train as the unsharded model; one of mixed dtypes may be refused as such."""
    if case.net == Named("mixed dtypes"):
        follows_or_refuses(trial, ShardedNet.play, expected(case), "dtype", error=("ValueError", "AssertionError"))
    else:
        follows(trial, ShardedNet.play, expected(case))


@requirement("generated/hybrid", SHARDED, Feature.HSDP, ranks=2)
@example(case=cut((LINEAR, MLP), "blocks.0", mesh=(2, 1)))
@given(case=generated_cases(meshes=hsdp_meshes()))
def test_generated_nets_train_on_replicas_of_shards(trial: Trial, case: GeneratedCase) -> None:
    """On a mesh of replicas and shards, of which either may be one, any net trains as the unsharded model does."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/order", SHARDED, ranks=2)
@example(case=cut((Block("residual", (LINEAR, MLP)),), "blocks.0.blocks.1", "blocks.0.blocks.0", "blocks.0"))
@given(case=nested_cases())
def test_the_order_of_sharding_does_not_matter(trial: Trial, case: GeneratedCase) -> None:
    """Modules may be sharded in any order that has each before those that it lies within."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/tied", SHARDED, ranks=2)
@example(case=cut(TIED, "blocks.1", ("blocks.0", "blocks.2")))
@given(case=generated_cases(nets=shared_nets()))
def test_what_is_shared_has_the_gradient_of_all_its_uses(trial: Trial, case: GeneratedCase) -> None:
    """Parameters and modules at several places of one group stay one, and get the gradients of all places."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/frozen", SHARDED, ranks=2)
@example(case=cut(FROZEN, "blocks.0", "blocks.1.adapter", "blocks.1"))
@given(case=generated_cases(nets=frozen_nets()))
def test_frozen_parts_stay_as_they_are(trial: Trial, case: GeneratedCase) -> None:
    """Frozen parameters get no gradient and do not change, and everything around them trains as it does unsharded."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/branches", SHARDED, ranks=2)
@example(case=cut(BRANCHED, "blocks.1.branches.0", "blocks.1.branches.1.layers.0", routes=((0,), (1,), (0,)), steps=3))
@given(case=branched_cases(apart=False))
def test_branches_that_did_not_run_have_no_gradient(trial: Trial, case: GeneratedCase) -> None:
    """Where all ranks skip a branch its gradients stay None and it does not change; when it runs again it trains."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/branches-apart", SHARDED, Feature.UNUSED_PARAMETERS, ranks=2)
@example(case=cut(BRANCHED, "blocks.0", "blocks.1", routes=((0, 1), (1, 1))))
@given(case=branched_cases(apart=True))
def test_ranks_may_take_branches_of_their_own(trial: Trial, case: GeneratedCase) -> None:
    """With set_reduce_scatter_unused_params, ranks that took another branch count as zero in a branch's gradients."""
    follows(trial, ShardedNet.play, expected(replace(case, acts=(UNUSED_TOO, *case.actions))))


@requirement("generated/twice", SHARDED, ranks=2)
@example(case=cut(TWICE, groups=(Group(("blocks.0.module",), True), Group(("blocks.1",), True), ROOT)))
@given(case=generated_cases(nets=nets_with(twices()), lists=False))
def test_modules_that_run_twice_have_the_gradient_of_both_runs(trial: Trial, case: GeneratedCase) -> None:
    """A module or a tree of modules that is called twice in a forward gets the gradient of both calls."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/placement", SHARDED, Feature.SHARD_PLACEMENT, ranks=2)
@example(case=cut(CONVOLUTION, "blocks.0.wide", dim=1))
@example(case=cut(CONVOLUTION, "blocks.0.gate", dim=2, world_size=3))
@given(case=generated_cases(nets=nets_with(leaves(("convolution",)), kinds=PURE, dims=(2, 4)), dim=OTHER_DIMS))
def test_nets_train_whatever_dim_is_cut(trial: Trial, case: GeneratedCase) -> None:
    """Convolutions and whatever surrounds them train cut along any dim, counted from either end, as cut by rows."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/checkpointed", SHARDED, Feature.CHECKPOINT, ranks=2)
@example(
    case=cut((LINEAR, Block("sequence", (MLP, LINEAR))), "blocks.0", "blocks.1.blocks.0", checkpointed=("blocks.1",))
)
@given(case=checkpointed_cases())
def test_recomputed_blocks_train_as_others(trial: Trial, case: GeneratedCase) -> None:
    """Blocks that run again in backward, sharded or not or in part, change no result."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/accumulation", SHARDED, Feature.ACCUMULATION, ranks=2)
@example(case=cut((LINEAR, MLP), "blocks.0", reduced=(False, True)))
@given(case=generated_cases(reduced=st.sampled_from([(False, True), (True, True), (True, False, True)])))
def test_micro_batches_add_up(trial: Trial, case: GeneratedCase) -> None:
    """Gradients of several backwards add up, whichever of them are reduced at once, if the last one is."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/prefetch", SHARDED, Feature.PREFETCH, ranks=2)
@example(
    case=cut((LINEAR, MLP, LINEAR), "blocks.2", "blocks.0", "blocks.1", ahead=(("blocks.0", ("blocks.2", "blocks.1")),))
)
@given(case=ahead_cases())
def test_modules_may_be_gathered_ahead_in_any_order(trial: Trial, case: GeneratedCase) -> None:
    """Telling sharded modules to gather later ones ahead, in any order, changes no result."""
    follows(trial, ShardedNet.play, expected(case))


@requirement("generated/buffers", SHARDED, ranks=2)
@example(case=cut((Block("norms"), LINEAR), "blocks.0.batch"))
@given(case=generated_cases(nets=nets_with(leaves(("norms",)))))
def test_buffers_are_each_ranks_own(trial: Trial, case: GeneratedCase) -> None:
    """Buffers stay whole, and running statistics are of the rank's own batches; nothing averages or resets them."""
    follows(trial, ShardedNet.play, expected(case))
