"""Overlap: collectives that run while the device computes, by the order in which they are issued and by time.

Time is measured on devices only; what is required of it is derived in ``kit/overlap.py``.
"""

from __future__ import annotations

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.communication import ladder as steps
from suites.communication import overlap_programs as programs
from suites.communication.ladder import LadderCase, ladders
from suites.communication.ladder_programs import comes_in_order
from suites.communication.overlap import OverlapCase, Times, complaint
from suites.kit.cases import TrainingCase
from suites.kit.strategies import given_half, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import finds

TIMED = (Feature.FULLY_SHARD, Feature.CUSTOM_COLLECTIVES)
STREAMS = ("streams",)
SIX = OverlapCase()
SIX_AHEAD = OverlapCase(ahead=True)
SIX_REPLICATED = OverlapCase(world_size=4, replicas=2)
#: One gather, long enough to stand out by itself.
ONE = OverlapCase(blocks=1, collective=12)


@requirement("overlap/issued-ahead", Feature.FULLY_SHARD, Feature.PREFETCH, ranks=2)
@example(case=LadderCase(2, ahead=((2, (0, 1)),)))
@given_half(case=ladders(ahead="earlier", reshard_after_forward=True))
def test_what_is_listed_for_backward_is_issued_before_gradients_are_computed(trial: Trial, case: LadderCase) -> None:
    """What is set to be gathered ahead in backward is on its way before the module computes its own gradients."""
    comes_in_order(trial, case, "backward", steps.pairs_ahead(case), "back", steps.gathers(case, "backward"))


@requirement("overlap/forward-ahead", *TIMED, Feature.PREFETCH, ranks=2, worlds=("processes",), limits=STREAMS)
def test_gathers_ahead_hide_behind_forward(trial: Trial) -> None:
    """Where each block is set to gather the next one ahead, half of the gathers' time or more hides behind forward."""
    hides(trial, programs.forward, SIX_AHEAD, SIX_AHEAD.blocks, alone=1)


@requirement("overlap/forward", *TIMED, level="should", ranks=2, worlds=("processes",), limits=STREAMS)
def test_gathers_hide_behind_forward(trial: Trial) -> None:
    """Where nothing is said of gathering ahead, half of the gathers' time or more hides behind forward as well."""
    hides(trial, programs.forward, SIX, SIX.blocks, alone=1)


@requirement("overlap/backward", *TIMED, level="should", ranks=2, worlds=("processes",), limits=STREAMS)
def test_gathers_and_reductions_hide_behind_backward(trial: Trial) -> None:
    """In backward, half of the time of gathers and reductions or more hides behind the computation of gradients."""
    hides(trial, programs.backward, SIX, 2 * SIX.blocks - 1, alone=2)


@requirement(
    "overlap/replicas",
    Feature.FULLY_SHARD,
    Feature.HSDP,
    Feature.ALL_REDUCE_HOOK,
    level="should",
    ranks=4,
    worlds=("processes",),
    limits=STREAMS,
)
def test_all_reduces_hide_behind_backward(trial: Trial) -> None:
    """On replicas of shards, half of the time of what follows all-reduces or more hides behind backward."""
    hides(trial, programs.backward, SIX_REPLICATED, SIX_REPLICATED.blocks, alone=1)


@requirement(
    "overlap/after-step",
    *TIMED,
    Feature.OPTIMIZER_EVENT,
    level="should",
    ranks=2,
    worlds=("processes",),
    limits=STREAMS,
)
def test_gathers_wait_for_the_optimizer_alone(trial: Trial) -> None:
    """After set_post_optim_event the next gather hides behind other work that the device was given since the event."""
    hides(trial, programs.after_step, ONE, 1, alone=0)


@requirement("overlap/waits-for-step", Feature.FULLY_SHARD, Feature.OPTIMIZER_EVENT, ranks=2, limits=STREAMS)
@given_half(case=training_cases(steps=3))
def test_gathers_wait_for_the_event_after_the_optimizer(trial: Trial, case: TrainingCase) -> None:
    """After set_post_optim_event the next forward computes with what was written before the event, others with all."""
    want = expected(case)
    losses = [[{"loss": step["loss"]} for step in want.trace(rank)] for rank in range(case.world_size)]
    finds(trial, programs.losses_after_steps, case, losses.__getitem__, within=want.within)


def hides(trial: Trial, program: Program, case: OverlapCase, least: int, alone: int) -> None:
    """Require of each rank's times what ``complaint`` says."""
    for number, got in enumerate(trial.run(program, case)):
        words = complaint(Times(**got), least, alone)
        trial.holds(not words, f"rank {number}: {words}")
