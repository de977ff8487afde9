"""Scripts of what users do with a net: they run parts of it, keep graphs and gradients, and change parameters.

What ``test_scripts.py`` says of scripts is true of these: after every act everything is compared.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.generated.net_cases import Group
from suites.kit.strategies import given
from suites.oracle.judging import follows
from suites.scripts.cases import ScriptCase, plain
from suites.scripts.programs import ShardedScript
from suites.scripts.strategies import (
    ABANDONING,
    ACCUMULATING,
    ALONE,
    BASIC,
    CANCELLING,
    CUT,
    DIVIDING,
    EDITING,
    FREEZING,
    GATHERING,
    GO,
    KEEPING,
    LOOKING,
    OWNING,
    REPEATING,
    REPLACING,
    TOGGLING,
    TRAINING,
    exact_scripts,
    roots_apart,
    scripts,
    small_cases,
)
from suites.scripts.unsharded import expected

SHARDED = Feature.FULLY_SHARD
#: Both blocks are roots, and reshard after forward.
ROOTS: dict[str, Any] = {"groups": (Group(("blocks.0",), True), Group(("blocks.1",), True))}
STATES = (SHARDED, Feature.STATE_DICT)


@requirement("scripts/parts", SHARDED, ranks=2)
@example(
    case=plain(*GO, "forward blocks.0", "backward oldest", "look blocks.0", "step", "look", "cut blocks.1", *GO[1:])
)
@given(case=exact_scripts(BASIC, TRAINING, LOOKING, KEEPING, ALONE * 2, CUT * 2))
def test_passes_may_be_of_a_part_of_the_net(trial: Trial, case: ScriptCase) -> None:
    """Modules that run alone, or on inputs that are detached, train as unsharded, whatever else runs in between."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/roots", SHARDED, ranks=2)
@example(case=plain("look blocks.1", "forward blocks.0", "look blocks.1", "backward oldest", "step", "look", **ROOTS))
@given(case=scripts(roots_apart(), TRAINING, LOOKING, GATHERING, FREEZING, EDITING, ALONE * 3, dtype="float64"))
def test_several_roots_may_run_by_turns(trial: Trial, case: ScriptCase) -> None:
    """Roots in a net that is not sharded run, learn and change by turns, as a student and its teacher do."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/abandoned", SHARDED, ranks=2)
@example(case=plain("forward", "abandon oldest", *GO, "step", "forward", "forward", "abandon oldest", "backward all"))
@given(case=exact_scripts(TRAINING, GATHERING, KEEPING, LOOKING, ABANDONING * 3))
def test_a_forward_may_be_forgotten(trial: Trial, case: ScriptCase) -> None:
    """A forward whose loss gets no backward, though it might, changes nothing."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/gradients", SHARDED, Feature.ACCUMULATION, ranks=2)
@example(case=plain(*GO, "stash", *GO, "flip blocks.0", *GO, "exchange blocks.1.bias", *GO, "step"))
@given(case=exact_scripts(TRAINING, OWNING * 4, ACCUMULATING))
def test_gradients_are_the_users(trial: Trial, case: ScriptCase) -> None:
    """Gradients that the user keeps stay what they are, and what is written or put there is added to and stepped by."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/repeated", SHARDED, ranks=2)
@given(case=scripts(small_cases("embedding", "norms"), TRAINING, LOOKING, KEEPING, REPEATING * 4))
def test_a_graph_may_be_used_again(trial: Trial, case: ScriptCase) -> None:
    """Backwards through a graph that is kept, whatever is done in between, add the gradients that they would alone."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/cancelled", SHARDED, Feature.UNSHARD, ranks=2)
@example(case=plain(*GO, "begin blocks.0", "cancel", "step", "look"))
@given(case=exact_scripts(BASIC, ("step", "look"), GATHERING, CANCELLING * 3))
def test_resharding_gives_up_a_gather(trial: Trial, case: ScriptCase) -> None:
    """What reshard() finds under way is given up, even if it is waited for later: forwards use what is there then."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/freeze", SHARDED, ranks=2)
@example(case=plain(*GO, "freeze blocks.0", *GO, "step", "drop", "thaw blocks.0", *GO))
@example(
    case=plain("forward", "reshard", "toggle", "forward", "reshard", "guide", "backward oldest", "backward oldest")
)
@given(case=scripts(small_cases("frozen"), TRAINING, LOOKING, FREEZING, TOGGLING * 2, ("drop", "drop")))
def test_modules_may_be_frozen_and_thawed_between_iterations(trial: Trial, case: ScriptCase) -> None:
    """Modules that are frozen or thawed between iterations stop or begin to train, whatever they did before."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/divided", SHARDED, Feature.DIVIDE_FACTOR, Feature.ACCUMULATION, ranks=2)
@example(case=plain("freeze blocks.0", "divide 4.0", *GO, "step", "drop", "thaw blocks.0", *GO))
@given(case=exact_scripts(TRAINING, LOOKING, FREEZING, ACCUMULATING, DIVIDING * 3))
def test_what_gradients_are_divided_by_outlasts_everything(trial: Trial, case: ScriptCase) -> None:
    """A divide factor that is set between iterations counts from then on, also for what does not train yet."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/edits", SHARDED, ranks=2)
@example(case=plain("freeze blocks.0", *GO, "negate blocks.0", "look", "reshard", "negate blocks.1", *GO))
@given(case=exact_scripts(BASIC, LOOKING, GATHERING, KEEPING, FREEZING, EDITING * 3))
def test_parameters_may_be_written_to_at_any_time(trial: Trial, case: ScriptCase) -> None:
    """What is written into sharded parameters between passes is what the next pass uses, frozen or not."""
    follows(trial, ShardedScript.play, expected(case))


@requirement("scripts/replaced", *STATES, ranks=2)
@example(case=plain("unshard blocks.0", "reshard", "assign blocks.0", *GO, "step", "drop", "swap blocks.1", *GO))
@example(case=plain("freeze blocks.0", *GO, "step", "drop", "assign blocks.0", *GO, "look"))
@given(case=exact_scripts(BASIC, LOOKING, GATHERING, KEEPING, FREEZING, REPLACING * 3))
def test_parameters_may_be_replaced_at_any_time(trial: Trial, case: ScriptCase) -> None:
    """Parameters that are loaded with assign=True between passes, or swapped, are those that the next pass uses."""
    follows(trial, ShardedScript.play, expected(case))
