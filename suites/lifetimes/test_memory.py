"""Memory: how many bytes of parameters and gradients a rank holds, moment by moment, and over many steps.

Bounds follow from shapes and from what was asked for (``memory.py``). What is counted is the memory of the rank's own
tensors (``tally.py``), on any device, and on an accelerator also what its allocator says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.kit.strategies import each, examples, examples_first, given
from suites.lifetimes import memory
from suites.lifetimes import memory_programs as programs
from suites.lifetimes.memory import (
    ExpertMemoryCase,
    MemoryCase,
    expert_memory_cases,
    memory_cases,
)
from suites.oracle.situation import STEP

SHARDED = Feature.FULLY_SHARD
OWN_MESHES = (SHARDED, Feature.SHARD_PLACEMENT, Feature.PARAMETER_MESH)
TWO = MemoryCase(2)
#: Where nothing at all may be left, few bytes are enough.
SMALL = MemoryCase(2, blocks=2, dim=6)
REPLICATED = MemoryCase(4, mesh=(2, 2))
IN_PAIRS = MemoryCase(4, reshard_after_forward=2)
EXPERTS = ExpertMemoryCase(4)
#: Blocks of which one is far more than what an allocator rounds.
LARGE = MemoryCase(2, dim=1024)
#: Several forwards, a backward through all, and a forward without gradients.
MANY = ("forward", "forward", "backward all", "step", "drop", "evaluate")
FORWARD = ("in forward 2", "after forward 2")
#: How many early and late rounds are looked at.
LOOKED_AT = 3


def at_most(
    trial: Trial, case: MemoryCase, bounds: dict[str, int], program: Program = programs.counted, *args: Any
) -> None:
    """Require of each moment, which are those of two steps unless said otherwise, that no more bytes are held."""
    for number, got in enumerate(trial.run(program, case, *args)):
        for when, bound in bounds.items():
            words = f"expected at most {bound} bytes, got {got[when]}"
            trial.holds(got[when] <= bound, f"rank {number}, {when}: {words}")


@requirement("memory/at-rest", SHARDED, ranks=2)
@examples_first()
@each(TWO, form=("plain", "frozen"))
@given(case=memory_cases())
def test_ranks_hold_their_parts_and_no_more(trial: Trial, case: MemoryCase) -> None:
    """Once sharded, and between steps, a rank holds its rows of all parameters, and no memory that has other rows."""
    at_most(trial, case, memory.bounds(case, "built", "registered", "after drop 2"))


@requirement("memory/in-forward", SHARDED, ranks=2)
@examples_first()
@example(case=TWO)
@given(case=memory_cases())
def test_forward_holds_few_blocks_at_once(trial: Trial, case: MemoryCase) -> None:
    """With resharding, forward never holds more than the root, the block that runs, one ahead, and two buffers."""
    at_most(trial, case, memory.bounds(case, "in forward 2"))


@requirement("memory/after-forward", SHARDED, ranks=2)
@examples_first()
@example(case=TWO)
@given(case=memory_cases(reshard_after_forward=st.sampled_from([True, None, False])))
def test_after_forward_what_was_resharded_is_gone(trial: Trial, case: MemoryCase) -> None:
    """After forward a rank holds its rows and activations, and once, in full, what is not resharded then."""
    at_most(trial, case, memory.bounds(case, "after forward 2"))


@requirement("memory/in-backward", SHARDED, ranks=2)
@examples_first()
@each(TWO, form=("plain", "by name", "frozen between"))
@given(case=memory_cases())
def test_backward_holds_few_blocks_and_gradients_at_once(trial: Trial, case: MemoryCase) -> None:
    """With resharding, backward never holds more than the root and some blocks and gradients beyond a rank's rows."""
    at_most(trial, case, memory.bounds(case, "in backward 2"))


@requirement("memory/after-backward", SHARDED, ranks=2)
@examples_first()
@example(case=TWO)
@given(case=memory_cases(reshard_after_forward=st.sampled_from([True, None, False])))
def test_after_backward_nothing_unsharded_is_left(trial: Trial, case: MemoryCase) -> None:
    """After backward and after the step a rank holds its rows of parameters and gradients, whatever forward kept."""
    at_most(trial, case, memory.bounds(case, "after backward 2", "after step 2"))


@requirement("memory/accumulation", SHARDED, Feature.ACCUMULATION, ranks=2)
@examples_first()
@example(case=TWO)
@given(case=memory_cases())
def test_quiet_passes_keep_gradients_once(trial: Trial, case: MemoryCase) -> None:
    """With gradient sync off gradients are held in full, once however many passes there are, and parameters are not."""
    quiet = {f"after backward {micro}": memory.quiet(case) for micro in (1, 2)}
    loud = {"after backward 3": memory.at_rest(case, gradients=True), "after drop 1": memory.at_rest(case)}
    at_most(trial, case, {**quiet, **loud}, programs.counted, micro_batches("gradient_sync"))


@requirement("memory/replicas", SHARDED, Feature.HSDP, ranks=4)
def test_replicas_hold_their_parts_and_no_more(trial: Trial) -> None:
    """On replicas of shards a rank holds its rows of its replica at rest, and no more blocks at once than on shards."""
    at_most(trial, REPLICATED, memory.bounds(REPLICATED))


@requirement("memory/replicas-quiet", SHARDED, Feature.HSDP, Feature.ACCUMULATION, ranks=4)
def test_sums_of_one_replica_are_held_in_parts(trial: Trial) -> None:
    """After a pass with set_requires_all_reduce(False) a rank holds its rows of gradients, and none in full."""
    bound = memory.at_rest(REPLICATED, gradients=True)
    bounds = {f"after backward {micro}": bound for micro in (1, 2, 3)}
    at_most(trial, REPLICATED, bounds, programs.counted, micro_batches("all_reduce"))


@requirement("memory/groups", SHARDED, Feature.RESHARD_TO_GROUP, ranks=4)
def test_smaller_groups_hold_their_parts_and_no_more(trial: Trial) -> None:
    """With reshard_after_forward=2 a rank holds a half of everything after forward, also after another, and no more."""
    at_most(trial, IN_PAIRS, memory.bounds(IN_PAIRS))
    looks = {when.replace("forward", "look"): bound for when, bound in memory.bounds(IN_PAIRS, *FORWARD).items()}
    at_most(trial, IN_PAIRS, looks, programs.counted, ("look", "look"))


@requirement("memory/parameter-meshes", *OWN_MESHES, ranks=2)
@examples_first()
@example(case=EXPERTS)
@given(case=expert_memory_cases())
def test_parts_on_meshes_of_their_own_are_held_as_others_are(trial: Trial, case: ExpertMemoryCase) -> None:
    """With experts on a mesh of their own a rank holds its rows on each, and no more blocks at once than elsewhere."""
    at_most(trial, case, memory.bounds(case))


@requirement("memory/precision", SHARDED, Feature.MIXED_PRECISION, ranks=2)
@examples_first()
@examples(memory.narrow(TWO))
@given(case=memory_cases().flatmap(lambda case: st.sampled_from(memory.narrow(case))))
def test_other_dtypes_of_computing_and_reducing_leave_nothing(trial: Trial, case: MemoryCase) -> None:
    """With a MixedPrecisionPolicy a rank holds its rows in their own dtype, and few blocks at once in wider ones."""
    at_most(trial, case, memory.bounds(case))


@requirement("memory/replicas-precision", SHARDED, Feature.MIXED_PRECISION, Feature.HSDP, ranks=4)
def test_sums_over_replicas_in_a_wider_dtype_are_not_kept(trial: Trial) -> None:
    """On replicas of shards, what is summed in a wider dtype than the parameters' is freed, block by block."""
    for case in memory.narrow(REPLICATED):
        at_most(trial, case, memory.bounds(case))


@requirement("memory/recomputed", SHARDED, Feature.CHECKPOINT, ranks=2)
def test_blocks_that_run_again_keep_their_inputs_alone(trial: Trial) -> None:
    """After forward, of a block that runs again in backward nothing is held but what came into it."""
    case = MemoryCase(2, dim=16, rows=64, form="recomputed")
    inputs = (case.blocks // 2 + 4) * case.rows * case.dim * case.torch_dtype.itemsize
    at_most(trial, case, {"after forward 2": memory.at_rest(case) + inputs})


@requirement("memory/steps", SHARDED, ranks=2)
def test_steps_leave_nothing_behind(trial: Trial) -> None:
    """Steps of several forwards, and forwards without gradients, leave nothing in memory, nor in cycles of objects."""
    does_not_grow(trial, SMALL, MANY)
    does_not_grow(trial, replace(SMALL, form="views"), MANY)


@requirement("memory/parameter-meshes-steps", *OWN_MESHES, ranks=4)
def test_steps_on_several_meshes_leave_nothing_behind(trial: Trial) -> None:
    """Steps of a net with experts on a mesh of their own leave nothing in memory, nor in cycles of objects."""
    does_not_grow(trial, ExpertMemoryCase(4, blocks=1, dim=6), MANY)


@requirement("memory/failures", SHARDED, Feature.RESET, ranks=2)
def test_failed_steps_leave_nothing_behind(trial: Trial) -> None:
    """Steps interrupted by an exception and followed by reset_iter_state() leave nothing in memory."""
    does_not_grow(trial, SMALL, ("fail 1", *STEP, "fail 1 backward", "drop", *STEP), collecting=True)


@requirement("memory/deleted", SHARDED, ranks=2)
def test_a_net_that_is_gone_holds_nothing(trial: Trial) -> None:
    """Once a sharded net that was trained is deleted and collected, no memory of its parameters is held."""
    nothing = memory.at_rest(TWO) - TWO.rest
    at_most(trial, TWO, {f"after the {when} is gone": nothing for when in ("first", "second")}, programs.deleted)


@requirement(
    "memory/on-device",
    SHARDED,
    ranks=2,
    worlds=("processes",),
    limits=("allocator statistics",),
)
def test_the_allocator_says_the_same(trial: Trial) -> None:
    """What the device's allocator has given out stays within the same bounds, at rest and at its peaks."""
    rest = memory.at_rest(LARGE)
    bounds = memory.bounds(LARGE, "in forward 2", "in backward 2", "after backward 2")
    allowed = {programs.UNCOUNTED: 0, **bounds, "built": rest, "after forward 2": rest, "after drop 2": rest}
    at_most(trial, LARGE, allowed, programs.allocated)


@requirement(
    "memory/offloaded",
    SHARDED,
    Feature.CPU_OFFLOAD,
    ranks=2,
    worlds=("processes",),
    limits=("allocator statistics", "pinned memory"),
)
def test_what_rests_on_the_cpu_takes_no_memory_of_the_device(trial: Trial) -> None:
    """With CPUOffloadPolicy no parameter and no gradient is in the device's memory between passes."""
    nothing = memory.at_rest(LARGE) - LARGE.rest
    between = ("built", *(f"after {action} 2" for action in STEP))
    allowed = {programs.UNCOUNTED: 0, **dict.fromkeys(between, nothing)}
    at_most(trial, LARGE, allowed, programs.allocated, True)


def micro_batches(setting: str) -> tuple[str, ...]:
    """Three micro-batches, of which a setting has only the last one reduced."""
    return (f"defer {setting}", *STEP[:2] * 2, f"resume {setting}", *STEP[:2], "drop")


def does_not_grow(trial: Trial, case: MemoryCase, actions: tuple[str, ...], collecting: bool = False) -> None:
    """Compare the last rounds of these actions with early ones: of each, those that another thread's timing favours."""
    for number, held in enumerate(trial.run(programs.many_times, case, actions, collecting)):
        early, late = held[1 : 1 + LOOKED_AT], held[-LOOKED_AT:]
        words = f"rank {number}: expected no more bytes after later rounds than after early ones, got {held}"
        trial.holds(min(late) <= max(early), words)
