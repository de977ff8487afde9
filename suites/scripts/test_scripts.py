"""Scripts: whatever is legal, done in whatever order, leads to what it leads to with the unsharded model.

After every act everything is compared: parameters, gradients, what the optimizer keeps, what trains, in which form each
parameter is registered, and what the act itself gave: a loss, outputs, a norm, a state. ``suites/scripts/acts.py``
says which acts there are, and when each is legal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.generated.net_cases import Group
from suites.generated.net_strategies import checkpointed_cases
from suites.kit.strategies import given
from suites.oracle.judging import follows
from suites.oracle.situation import AUTOMATIC, MANUAL
from suites.scripts.cases import ScriptCase, plain
from suites.scripts.orders import APART, PLANS, in_any_order
from suites.scripts.programs import ShardedScript
from suites.scripts.strategies import (
    ABANDONING,
    ACCUMULATING,
    ALONE,
    BASIC,
    CUT,
    FAILING,
    FINALIZING,
    FORWARDS,
    FREEZING,
    GATHERING,
    GO,
    IN_SHARDS,
    KEEPING,
    LOOKING,
    META,
    OWNING,
    REPEATING,
    SETTING,
    STATE,
    TOGGLING,
    TRAINING,
    exact_scripts,
    scripts,
    small_cases,
    small_nets,
)
from suites.scripts.unsharded import expected

SHARDED = Feature.FULLY_SHARD
STATES = (SHARDED, Feature.STATE_DICT)


@requirement("scripts/train", SHARDED, ranks=2)
@example(case=plain("forward", "evaluate", "forward", "backward newest", "look", "backward oldest", "step", "forward"))
@given(case=scripts(small_cases("embedding", "norms"), TRAINING, FORWARDS, LOOKING, SETTING))
def test_training_may_go_any_way(trial: Trial, case: ScriptCase) -> None:
    """Forwards, backwards, steps and zeroing in any order, and looking at outputs between, train as unsharded."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/gather", SHARDED, ranks=2)
@example(case=plain("unshard blocks.0", *GO, "unshard blocks.0", "step", "reshard", *GO))
@example(case=plain("keep backward", *GO, "reshard", "free backward", *GO, "look"))
@example(case=plain("free forward", "forward", "begin", "backward oldest", "begin blocks.0", "wait", "reshard", "look"))
@given(case=exact_scripts(BASIC, ("step", "look"), GATHERING, KEEPING))
def test_gathering_by_hand_at_any_time_changes_no_result(trial: Trial, case: ScriptCase) -> None:
    """Explicit unsharding and resharding, and changing when parameters are freed, change no result at any time."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/reset", SHARDED, Feature.RESET, ranks=2)
@example(case=plain("keep forward", *GO, "step", "drop", "fail blocks.1", "look", "fail blocks.0", *GO, "step"))
@given(case=exact_scripts(BASIC, ("step", "look"), GATHERING, KEEPING, FAILING * 3))
def test_passes_may_fail_at_any_time(trial: Trial, case: ScriptCase) -> None:
    """After an exception in a forward, and reset_iter_state(), all is sharded, and nothing old is used."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/state", *STATES, ranks=2)
@example(case=plain("keep forward", *GO, "save", "step", "look", "load sharded", "look", "recall full", "load full"))
@given(case=exact_scripts(BASIC, LOOKING * 2, ("keep forward", "free forward"), STATE, ("load sharded",)))
def test_state_may_be_taken_and_given_back_at_any_time(trial: Trial, case: ScriptCase) -> None:
    """State that is taken in the midst of training, and given back later to net or optimizer or both, is as it was."""
    follows(trial, ShardedScript.play, expected(case))


#: Four ranks, of which pairs keep both blocks after forward.
PAIRS: dict[str, Any] = {"world_size": 4, "groups": (Group(("blocks.0",), 2), Group(("blocks.1",), 2), Group())}


@requirement("scripts/to-group", *STATES, Feature.RESHARD_TO_GROUP, ranks=4)
@example(case=plain("look", "save", *GO, "step", "evaluate", "load full", "look", *GO, **PAIRS))
@example(case=plain("free forward", *GO, "look", "step", "look", *GO, **PAIRS))
@given(
    case=exact_scripts(BASIC, ("step", "look"), LOOKING, GATHERING, KEEPING, STATE, ALONE, CUT, ABANDONING, pairs=True)
)
def test_what_smaller_groups_keep_is_never_used_once_it_is_old(trial: Trial, case: ScriptCase) -> None:
    """Where pairs of ranks keep parameters after forward, with a backward or without, nothing uses what is old."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/meta", *STATES, Feature.META_DEVICE, ranks=2)
@example(case=plain(*GO, "step", "save", "restart full", *GO, "step", "restart sharded", "look"))
@given(case=exact_scripts(TRAINING, LOOKING, META * 2))
def test_training_goes_on_in_a_net_made_on_meta(trial: Trial, case: ScriptCase) -> None:
    """A net made on meta that is given the state goes on as the net that it was taken from."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/accumulate", *STATES, Feature.ACCUMULATION, ranks=2)
@example(case=plain("accumulate", "save", "look", "accumulate", *GO, "step", *GO))
@example(case=plain("forward", "cut blocks.1", "withhold oldest", "backward newest", "accumulate", *GO, "step"))
@given(case=exact_scripts(TRAINING, LOOKING, KEEPING, ("save",) * 3, CUT, ALONE, OWNING, ABANDONING, ACCUMULATING * 4))
def test_gradients_that_wait_outlast_whatever_comes_between(trial: Trial, case: ScriptCase) -> None:
    """Gradients of passes without reduction are reduced with the next that reduces, whatever is done in between."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/finalized", SHARDED, Feature.MANUAL_FINALIZATION, ranks=2)
@example(case=plain(MANUAL, *GO, *GO, "finalize", "step", *GO, "finalize", AUTOMATIC, *GO))
@example(case=plain(MANUAL, "keep forward", *FORWARDS[1:], "backward newest", "finalize", "backward all", "finalize"))
@given(case=exact_scripts(TRAINING, LOOKING, KEEPING, FINALIZING * 4))
def test_backwards_may_be_finalized_at_any_time(trial: Trial, case: ScriptCase) -> None:
    """Backwards that are finalized apart, several at once or not, with other passes between, train as unsharded."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/hsdp", *STATES, Feature.HSDP, Feature.ACCUMULATION, ranks=2)
@in_any_order(
    plain("accumulate", "accumulate shards", "save", "accumulate", *GO, "step", *GO, mesh=(2, 1)),
    plain("free forward", *GO, "look", "step", "look", *GO, world_size=4, mesh=(2, 2)),
    more=IN_SHARDS * 3,
    less=ALONE,  # see accumulation/hsdp-other-parameters
    world_size=4,
    mesh=(2, 2),
)
def test_replicas_of_shards_may_go_any_way(trial: Trial, case: ScriptCase) -> None:
    """On replicas of shards scripts lead where they lead unsharded, also where sums stay among shards for a while."""
    follows(trial, ShardedScript.play, expected(case))


#: Computed and reduced in a wider dtype than parameters have, so that all stays exact.
WIDER: dict[str, Any] = {"dtype": "float32", "computed": "float64"}


@requirement("scripts/precision", *STATES, Feature.MIXED_PRECISION, Feature.ACCUMULATION, ranks=2)
@in_any_order(
    plain(*GO, "step", "accumulate", "save", "look", *GO, "step", "load full", "look", **WIDER),
    less=(*FREEZING, *TOGGLING),
    **WIDER,
)
def test_the_dtype_of_computing_outlasts_everything(trial: Trial, case: ScriptCase) -> None:
    """Where computing and reducing have a dtype of their own, they have it whatever was done before."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/thawed-precision", SHARDED, Feature.MIXED_PRECISION, ranks=2)
@example(case=plain("freeze blocks.0", *GO, "step", "thaw blocks.0", *GO, "step", **WIDER))
@given(case=exact_scripts(TRAINING, LOOKING, FREEZING, **WIDER))
def test_what_is_thawed_has_the_dtype_of_computing(trial: Trial, case: ScriptCase) -> None:
    """What was frozen, even from the first forward on, has the dtypes that the policy asks for once it trains."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/offload", *STATES, Feature.CPU_OFFLOAD, ranks=2)
@in_any_order(
    plain(*GO, "save", "step", "look", "load sharded", "look", "recall full", *GO, offloaded=True), offloaded=True
)
def test_offloaded_parameters_may_go_any_way(trial: Trial, case: ScriptCase) -> None:
    """With parameters that rest on the CPU, scripts lead where they lead without sharding."""
    follows(trial, ShardedScript.play, expected(case))


AGAIN = ("forward", "forward", "backward newest", "look", "backward oldest", "keep forward", *GO)


@requirement("scripts/recomputed", SHARDED, Feature.CHECKPOINT, ranks=2)
@example(case=plain(*AGAIN, "step", checkpointed=("blocks.0", "blocks.1")))
@given(
    case=scripts(
        checkpointed_cases(small_nets("uneven")),
        TRAINING,
        FORWARDS,
        LOOKING,
        GATHERING,
        KEEPING,
        ALONE,
        CUT,
        ABANDONING,
    )
)
def test_recomputed_blocks_may_go_any_way(trial: Trial, case: ScriptCase) -> None:
    """With blocks that run again in backward, scripts lead where they lead unsharded."""
    follows(trial, ShardedScript.play, expected(case))


ALL = (
    *(TRAINING, LOOKING, SETTING, GATHERING, KEEPING, STATE, META, FREEZING, ACCUMULATING * 3),
    *(ALONE, CUT, ABANDONING, OWNING, REPEATING, TOGGLING),
)


@requirement("scripts/any-order", SHARDED, ranks=2)
@in_any_order(count=64)
def test_any_act_may_come_after_any_other(trial: Trial, case: ScriptCase) -> None:
    """Whatever was done before, and in whatever order, each act leads where it leads with the unsharded model."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/in-vain", SHARDED, ranks=2)
@in_any_order(
    replace(APART[0], acts=("forward", "forward blocks.0", "withhold oldest", "backward newest", *GO, "step")),
    plans=(*APART, *PLANS),
    more=CUT,
    waiting=2,
)
def test_what_is_gathered_in_vain_changes_no_result(trial: Trial, case: ScriptCase) -> None:
    """Where backward may gather what it does not come to, each act leads where it leads with the unsharded model."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/mixed", *STATES, Feature.META_DEVICE, Feature.ACCUMULATION, ranks=2)
@example(case=plain("accumulate", "unshard blocks.0", "reshard", *GO, "freeze blocks.1", "save", "restart full", *GO))
@given(case=scripts(small_cases("embedding", "uneven", "frozen"), *ALL))
def test_all_acts_mix(trial: Trial, case: ScriptCase) -> None:
    """All of this together, in any order that is legal, leads where it leads unsharded."""
    follows(trial, ShardedScript.play, expected(case))
