"""Communication: what is gathered, what is reduced, how often, how much, and among whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.communication import communication_programs as programs
from suites.communication.communication_programs import FrozenCase, RoomCase, frozen_cases, room_cases
from suites.kit import expected_collectives as wire
from suites.kit.cases import Stack, TrainingCase
from suites.kit.expected_collectives import Unit, counted, tallied
from suites.kit.hsdp import hsdp_cases
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.registered import SetLaterCase, group_cases, set_later_cases
from suites.kit.strategies import costly, plans, stacks, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import trains

SHARDED = Feature.FULLY_SHARD
#: Two blocks sharded by themselves, of rows that ranks do not divide, and one left to the root.
RICH = TrainingCase(2, Stack(3, ("linear", "mlp", "nested"), 1), (0, 1), reshard_after_forward=True)
TWO = TrainingCase(2, Stack(2, ("linear", "mlp")), (1,))
#: A net whose first block is sharded by itself, and is linear: its gradient needs its input, and not its weight.
LINEAR_FIRST = stacks(most_blocks=2, largest=5, buffers=False).flatmap(
    lambda net: st.tuples(st.just(Stack(net.dim, ("linear", *net.blocks), net.multiplier, net.bias)), plans(net))
)
linear_first = LINEAR_FIRST.flatmap(
    lambda drawn: training_cases(
        exact=True,
        dtype="float64",
        steps=1,
        net=drawn[0],
        sharded=(0, *(place + 1 for place in drawn[1])),
        reshard_after_forward=True,
    )
)
#: One weight in float32, whose average may be taken by the collective.
TINY = TrainingCase(2, Stack(1, ("linear",), multiplier=1, bias=False), exact=True, steps=1, batch=1)


@requirement("communication/forward", SHARDED, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=training_cases())
def test_forward_gathers_each_group_of_parameters_once(trial: Trial, case: TrainingCase) -> None:
    """Forward gathers all parameters that were sharded together in one message of padded rows, and says no more."""
    for number, got in enumerate(trial.run(programs.communicated, case)):
        want = tallied(wire.gathers(case, number, wire.units(case)))
        trial.agree(f"rank {number}, forward", counted(got["forward"]), want)


@requirement("communication/backward", SHARDED, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=training_cases())
def test_backward_gathers_what_was_freed_and_reduces_each_group_once(trial: Trial, case: TrainingCase) -> None:
    """Backward gathers once what forward freed, reduce-scatters each group's gradients once, and says no more."""
    for number, got in enumerate(trial.run(programs.communicated, case)):
        want = backward(case, number, wire.freed(case))
        trial.agree(f"rank {number}, backward", counted(got["backward"]), want)


@requirement("communication/hsdp", SHARDED, Feature.HSDP, ranks=2)
@costly(2)
@example(case=TrainingCase(2, Stack(3, ("linear", "mlp")), (0,), mesh=(2, 1)))
@given(case=hsdp_cases())
def test_replicas_add_one_all_reduce_of_each_part(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards, gathers and reduce-scatters stay in a replica, and each part is all-reduced once."""
    for number, got in enumerate(trial.run(programs.communicated, case)):
        want = tallied(wire.gathers(case, number, wire.units(case)))
        trial.agree(f"rank {number}, forward", counted(got["forward"]), want)
        want = backward(case, number, wire.freed(case))
        trial.agree(f"rank {number}, backward", counted(got["backward"]), want)


@requirement("communication/to-group", SHARDED, Feature.RESHARD_TO_GROUP, ranks=4)
@costly(2)
@example(case=TrainingCase(6, Stack(3, ("linear", "mlp"), 1), (0,), reshard_after_forward=2))
@given(case=group_cases())
def test_backward_gathers_within_the_smaller_groups(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward=k, backward gathers each group of parameters once, among k neighbours."""
    size, count = int(case.reshard_after_forward or 0), len(wire.units(case))
    for number, got in enumerate(trial.run(programs.communicated, case)):
        neighbours = list(range(number // size * size, number // size * size + size))
        words = [f"all_gather on ranks {neighbours}", f"reduce_scatter on ranks {wire.sharers(case, number)}"]
        trial.agree(f"rank {number}, backward", counted(got["backward"], wire.by_op), tallied(words * count))


@requirement("communication/set-later", SHARDED, ranks=2)
@costly(2)
@example(
    case=SetLaterCase(
        2, Stack(1, ("linear",), multiplier=1, bias=False), dtype="float64", steps=1, batch=1, recurse=False
    )
)
@given(case=set_later_cases())
def test_resharding_set_later_changes_what_backward_gathers(trial: Trial, case: SetLaterCase) -> None:
    """After set_reshard_after_forward backward gathers as if that had been asked for, of the root alone or of all."""
    blocks = case.then if case.recurse else case.reshard_after_forward is not False
    again = wire.gathered_again(case, case.then, blocks)
    for number, got in enumerate(trial.run(programs.communicated, case, programs.set_later)):
        trial.agree(f"rank {number}, backward", counted(got["backward"]), backward(case, number, again))


@requirement("communication/by-hand", SHARDED, ranks=2)
@costly(2)
@given(case=training_cases(reshard_after_forward=False))
def test_what_is_resharded_by_hand_is_gathered_in_backward(trial: Trial, case: TrainingCase) -> None:
    """A group that forward kept, and that is resharded explicitly, is gathered once in backward."""
    for number, got in enumerate(trial.run(programs.communicated, case, None, programs.reshard_all)):
        want = backward(case, number, wire.units(case))
        trial.agree(f"rank {number}, backward", counted(got["backward"]), want)


@requirement("communication/not-in-backward", SHARDED, ranks=2)
@costly(2)
@given(case=linear_first)
def test_what_backward_does_not_need_is_not_gathered(trial: Trial, case: TrainingCase) -> None:
    """After set_unshard_in_backward(False) backward does not gather that group, and its gradients are right."""
    want = expected(case)
    for number, got in enumerate(trial.run(programs.communicated, case, programs.first_block_not_in_backward)):
        again = [unit for unit in wire.freed(case) if unit.name != "0"]
        trial.agree(f"rank {number}, backward", counted(got["backward"]), backward(case, number, again))
        right = want.trace(number)[0]["gradients"]
        trial.agree(f"rank {number}, gradients", got["gradients"], right)


@requirement("communication/forward-twice", SHARDED, ranks=2)
@costly(2)
@given(case=training_cases())
def test_a_second_forward_gathers_what_the_first_one_freed(trial: Trial, case: TrainingCase) -> None:
    """Of two forwards before one backward, the second gathers again only what the first one freed."""
    for number, (first, second) in enumerate(trial.run(programs.forwards, case)):
        trial.agree(f"rank {number}, first", counted(first), tallied(wire.gathers(case, number, wire.units(case))))
        trial.agree(f"rank {number}, second", counted(second), tallied(wire.gathers(case, number, wire.freed(case))))


@requirement("communication/frozen", SHARDED, ranks=2)
@costly(2)
@example(
    case=FrozenCase(
        2, Stack(1, ("linear", "linear"), multiplier=1, bias=False), dtype="float64", steps=1, batch=1, frozen=(0,)
    )
)
@given(case=frozen_cases())
def test_frozen_parameters_are_not_reduced(trial: Trial, case: FrozenCase) -> None:
    """Reduce-scatters hold the gradients of trained parameters only, and a group without any has none."""
    which = wire.units(case, case.names())
    for number, got in enumerate(trial.run(programs.communicated, case)):
        reduced = [entry for entry in got["backward"] if entry["op"] != "all_gather"]
        trial.agree(f"rank {number}, backward", counted(reduced), tallied(wire.reductions(case, number, which)))


@requirement("communication/dtypes", SHARDED, Feature.MIXED_PRECISION, ranks=2)
@costly(2)
@example(
    case=PrecisionCase(
        2, Stack(1, ("linear",), multiplier=1, bias=False), exact=True, steps=1, batch=1, reduce_dtype="bfloat16"
    )
)
@given(case=precision_cases(steps=1))
def test_gathers_and_reductions_are_in_their_dtypes(trial: Trial, case: PrecisionCase) -> None:
    """Parameters are gathered in as many bytes as param_dtype has, and gradients are reduced in reduce_dtype."""
    which = wire.units(case)
    for number, got in enumerate(trial.run(programs.communicated_in_low_precision, case)):
        want = tallied(wire.gathers(case, number, which, case.compute.itemsize))
        trial.agree(f"rank {number}, forward", counted(got["forward"]), want)
        reduced = [entry for entry in got["backward"] if entry["op"] != "all_gather"]
        dtype = str(case.reduction).removeprefix("torch.")
        trial.agree(f"rank {number}, reduced", counted(reduced), tallied(wire.reductions(case, number, which, dtype)))


@requirement("communication/recomputed", SHARDED, Feature.CHECKPOINT, ranks=2)
@costly(2)
@example(case=RICH)
@given(case=training_cases())
def test_recomputation_gathers_no_more(trial: Trial, case: TrainingCase) -> None:
    """Blocks that run again in backward use what was gathered for backward, and have it gathered no second time."""
    for number, got in enumerate(trial.run(programs.communicated_with_recomputation, case)):
        want = backward(case, number, wire.freed(case))
        trial.agree(f"rank {number}, backward", counted(got["backward"]), want)


@requirement("communication/own-collectives", SHARDED, Feature.CUSTOM_COLLECTIVES, ranks=2)
@costly(2)
@given(case=training_cases(exact=True))
def test_collectives_of_the_user_take_the_place_of_others(trial: Trial, case: TrainingCase) -> None:
    """Custom collectives are called for every gather and reduction, on what they allocated, and training is right."""
    want = expected(case)
    for number, got in enumerate(trial.run(programs.train_with_own_collectives, case)):
        trial.agree(f"rank {number}", got.pop("trace"), want.trace(number))
        trial.agree(f"rank {number}, calls", got, dict.fromkeys(got, 0))


@requirement(
    "communication/group-apart",
    SHARDED,
    Feature.SEPARATE_GROUP,
    Feature.CUSTOM_COLLECTIVES,
    ranks=2,
)
@costly(2)
@given(case=training_cases(steps=1))
def test_reductions_may_have_a_group_of_their_own(trial: Trial, case: TrainingCase) -> None:
    """set_separate_reduce_scatter_group gives all reductions one group of the same ranks, kept until it is undone."""
    for number, found in enumerate(trial.run(programs.groups_of_reductions, case)):
        ranks = [wire.sharers(case, number)] * len(wire.units(case))
        fact = {"apart": False, "groups": 1, "as before": True, "ranks": ranks}
        changes: list[dict[str, Any]] = [{}, {"apart": True, "as before": False}, {"apart": True}, {"as before": False}]
        trial.agree(f"rank {number}", found, [{**fact, **change} for change in changes])


@requirement("communication/group-apart-trains", SHARDED, Feature.SEPARATE_GROUP, ranks=2)
@costly(2)
@example(case=TINY)
@given(case=training_cases(exact=True))
def test_a_group_of_their_own_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """With reductions in a group of their own training is the unsharded model's."""
    follows(trial, case, programs.train_with_a_group_apart)


#: The thread world's process group is no backend's, and has no memory to ask for.
@requirement("communication/group-memory", SHARDED, Feature.GROUP_MEMORY, ranks=2, worlds=("processes",))
@costly(2)
@example(case=TINY)
@given(case=training_cases(exact=True))
def test_memory_of_the_group_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """With buffers of the process group, or ordinary ones where it has none, training is the unsharded model's."""
    follows(trial, case, programs.train_with_memory_of_the_group)


@requirement(
    "communication/refuses-both",
    SHARDED,
    Feature.GROUP_MEMORY,
    Feature.CUSTOM_COLLECTIVES,
    level="should",
)
def test_memory_of_the_group_is_refused_for_custom_collectives(trial: Trial) -> None:
    """Asking for the group's memory after setting a custom all-gather raises an error that says so."""
    program = programs.memory_of_the_group_for_own_collectives
    trial.refuses(program, TWO, ("AssertionError", "ValueError", "RuntimeError"), "custom")


@requirement("communication/input-buffers", SHARDED, Feature.INPUT_BUFFERS, ranks=2)
@costly(2)
@example(case=RoomCase(2, Stack(1, ("linear",), multiplier=1, bias=False), exact=True, steps=1, batch=1, rooms=(2,)))
@given(case=room_cases(exact=True))
def test_room_for_inputs_of_reductions_changes_no_result(trial: Trial, case: RoomCase) -> None:
    """However many inputs of reductions each module may keep in memory, training is the unsharded model's."""
    follows(trial, case, programs.train_with_room)


@requirement("communication/refuses-room", SHARDED, Feature.INPUT_BUFFERS)
@pytest.mark.parametrize(
    ("program", "error"),
    [
        (programs.room_for_none, "ValueError"),
        (programs.room_by_another_type, "TypeError"),
        (programs.room_by_a_bool, "TypeError"),
    ],
)
def test_room_that_is_no_positive_int_is_refused(trial: Trial, program: Program, error: str) -> None:
    """A number of input buffers below 1 raises ValueError, and one that is not an int, or a bool, TypeError."""
    trial.refuses(program, TWO, error, "")


@requirement("communication/refuses-resharding", SHARDED)
def test_setting_resharding_to_a_number_is_refused(trial: Trial) -> None:
    """set_reshard_after_forward of anything but a bool raises an error that asks for a bool."""
    trial.refuses(programs.reshard_by_a_number, TWO, ("ValueError", "TypeError"), "bool")


def backward(case: TrainingCase, rank: int, again: list[Unit]) -> wire.Counts:
    """What backward communicates: gathers of some groups, and reductions of all."""
    return tallied([*wire.gathers(case, rank, again), *wire.reductions(case, rank, wire.units(case))])


def follows(trial: Trial, case: TrainingCase, program: Program) -> None:
    """Train, and compare with the unsharded model bit for bit."""
    trains(trial, program, case)
