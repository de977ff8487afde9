"""Communication: what is gathered, what is reduced, how often, how much, and among whom.

What an implementation does once, when it first runs, is its own business: what counts are passes after the first one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.refusals import TYPE_ERRORS
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.communication import own_collectives
from suites.communication.played import each_group, play, play_recomputed, training_after
from suites.communication.talk import Kind, says
from suites.kit import expected_collectives as wire
from suites.kit.cases import Stack, TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.registered import RESHARDING, group_cases
from suites.kit.strategies import each, given_half, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import agrees, finds, follows
from suites.oracle.situation import PASS, UNUSED_TOO

SHARDED, APART, OWN = Feature.FULLY_SHARD, Feature.SEPARATE_GROUP, Feature.CUSTOM_COLLECTIVES
#: Two blocks sharded by themselves, of rows that ranks do not divide, and one left to the root.
RICH = TrainingCase(2, Stack(3, ("linear", "mlp", "nested"), 1), (0, 1), reshard_after_forward=True)
#: Two passes, of which the second counts.
TWICE = (*PASS, "drop", *PASS)
#: A net whose first block is sharded by itself, and is linear: its gradient needs its input, and not its weight.
linear_first = training_cases(
    exact=True, dtype="float64", reshard_after_forward=True, acts=("set unshard_in_backward False in 0", *TWICE)
).map(
    lambda case: replace(
        case,
        net=replace(case.net, blocks=("linear", *case.net.blocks)),
        sharded=(0, *(place + 1 for place in case.sharded)),
    )
)
#: The same, but for a forward without gradients before the one that counts.
AFTER_EVALUATION = (*PASS, "drop", "look", *PASS)
TWO_FORWARDS = (*PASS, "drop", "forward", "forward", "backward all")
BY_HAND = (*PASS, "drop", "forward", "reshard", "backward")
WITH_UNUSED = (UNUSED_TOO, *TWICE)
#: One weight in float32, whose average may be taken by the collective.
TINY = TrainingCase(2, Stack(1, ("linear",), multiplier=1, bias=False), exact=True, steps=1, batch=1)
NEXT = replace(TINY, dtype="float64", exact=False)


@st.composite
def frozen_cases(draw: st.DrawFn) -> Any:
    """Any training with some parameters frozen, but for the last one."""
    case = draw(training_cases(steps=2))
    names = [name for name, _ in case.build().named_parameters()][:-1]
    frozen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)) if names else []
    return replace(case, net=replace(case.net, frozen=tuple(frozen)))


def set_on_all(setting: str) -> Any:
    """Exact training after one setting of the whole net, or of ``each`` module."""
    return training_after(training_cases(exact=True), lambda _: st.just([f"set {setting}"]))


set_later_cases = training_after(
    training_cases(steps=2),
    lambda _: st.sampled_from([[setting] for setting in RESHARDING]),
)
room_cases = training_after(
    training_cases(exact=True),
    lambda case: st.tuples(
        *(st.sampled_from([f"set reduce_scatter_max_input_buffers {n} in {group}" for n in (1, 2, 3)])
          for group in each_group(case))
    ),
)  # fmt: skip


@requirement("communication/forward", SHARDED, ranks=2)
@example(case=RICH)
@given_half(case=training_cases(steps=2))
def test_forward_gathers_each_group_of_parameters_once(trial: Trial, case: TrainingCase) -> None:
    """Forward gathers all parameters that were sharded together in one message of padded rows, and says no more."""
    communicates(trial, case, "forward")


@requirement("communication/backward", SHARDED, ranks=2)
@example(case=RICH)
@given_half(case=training_cases(steps=2))
def test_backward_gathers_what_was_freed_and_reduces_each_group_once(trial: Trial, case: TrainingCase) -> None:
    """Backward gathers once what forward freed, reduce-scatters each group's gradients once, and says no more."""
    communicates(trial, case, "backward")


@requirement("communication/hsdp", SHARDED, Feature.HSDP, ranks=2)
@example(case=TrainingCase(2, Stack(3, ("linear", "mlp")), (0,), mesh=(2, 1)))
@given_half(case=hsdp_cases(steps=2))
def test_replicas_add_one_all_reduce_of_each_part(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards, gathers and reduce-scatters stay in a replica, and each part is all-reduced once."""
    communicates(trial, case)


@requirement("communication/to-group", SHARDED, Feature.ONE_MESSAGE, Feature.RESHARD_TO_GROUP, ranks=4)
@example(case=TrainingCase(6, Stack(3, ("linear", "mlp"), 1), (0,), reshard_after_forward=2))
@given_half(case=group_cases().map(lambda case: replace(case, steps=2)))
def test_backward_gathers_within_the_smaller_groups(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward=k, backward gathers each group of parameters once, among k neighbours."""
    size, count = int(case.reshard_after_forward or 0), len(wire.group_sizes(case))
    for number, trace in enumerate(trial.run(play, case)):
        [_, backward] = [seen for seen, act in zip(trace, case.actions, strict=True) if act == "backward"]
        neighbours = list(range(number // size * size, number // size * size + size))
        words = [f"all_gather on ranks {neighbours}", f"reduce_scatter on ranks {wire.sharers(case, number)}"]
        got = wire.counted(backward["collectives"], wire.by_op)
        trial.agree(f"rank {number}, backward", got, wire.tallied(words * count))


@requirement("communication/set-later", SHARDED, ranks=2)
@each(NEXT, acts=[(setting, *TWICE) for setting in RESHARDING])
@given_half(case=set_later_cases)
def test_resharding_set_later_changes_what_backward_gathers(trial: Trial, case: TrainingCase) -> None:
    """After set_reshard_after_forward backward gathers as if that had been asked for, of the root alone or of all."""
    communicates(trial, case, "backward")


@requirement("communication/by-hand", SHARDED, ranks=2)
@given_half(case=training_cases(reshard_after_forward=False, acts=BY_HAND))
def test_what_is_resharded_by_hand_is_gathered_in_backward(trial: Trial, case: TrainingCase) -> None:
    """A group that forward kept, and that is resharded explicitly, is gathered once in backward."""
    communicates(trial, case, "backward")


@requirement("communication/not-in-backward", SHARDED, ranks=2)
@given_half(case=linear_first)
def test_what_backward_does_not_need_is_not_gathered(trial: Trial, case: TrainingCase) -> None:
    """After set_unshard_in_backward(False) backward does not gather that group, and its gradients are right."""
    agrees(trial, communicates(trial, case, "backward"), expected(case))


@requirement("communication/forward-twice", SHARDED, ranks=2)
@example(case=replace(NEXT, acts=TWO_FORWARDS))
@given_half(case=training_cases(acts=TWO_FORWARDS))
def test_a_second_forward_gathers_what_the_first_one_freed(trial: Trial, case: TrainingCase) -> None:
    """Of two forwards before one backward, the second gathers again only what the first one freed."""
    communicates(trial, case, "forward")


@requirement("communication/after-evaluation", SHARDED, ranks=2)
@example(case=replace(NEXT, net=Stack(2, ("linear", "linear")), sharded=(0, 1), acts=AFTER_EVALUATION))
@given_half(case=training_cases(acts=AFTER_EVALUATION))
def test_an_evaluation_leaves_nothing_to_gather_in_backward(trial: Trial, case: TrainingCase) -> None:
    """After a forward without gradients, backward gathers and reduces each group once, as it does without."""
    communicates(trial, case, "backward")


@requirement("communication/frozen", SHARDED, ranks=2)
@example(case=replace(NEXT, net=Stack(1, ("linear", "linear"), 1, False, ("0.weight",)), steps=2))
@given_half(case=frozen_cases())
def test_frozen_parameters_are_not_reduced(trial: Trial, case: TrainingCase) -> None:
    """Reduce-scatters hold the gradients of trained parameters only, and a group without any has none."""
    communicates(trial, case, "backward", "reductions")


@requirement("communication/unused", SHARDED, Feature.UNUSED_PARAMETERS, ranks=2)
@example(case=replace(RICH, acts=WITH_UNUSED))
@given_half(case=training_cases(acts=WITH_UNUSED))
def test_reducing_what_is_not_used_takes_no_more_messages(trial: Trial, case: TrainingCase) -> None:
    """Where gradients of unused parameters are reduced too, backward gathers and reduces each group no more often."""
    communicates(trial, case, "backward")


@requirement("communication/dtypes", SHARDED, Feature.MIXED_PRECISION, ranks=2)
@example(case=PrecisionCase(2, TINY.net, exact=True, batch=1, reduce_dtype="bfloat16"))
@given_half(case=precision_cases(steps=2))
def test_gathers_and_reductions_are_in_their_dtypes(trial: Trial, case: PrecisionCase) -> None:
    """Parameters are gathered in as many bytes as param_dtype has, and gradients are reduced in reduce_dtype."""
    traces = communicates(trial, case, "forward")
    says(trial, case, traces, "backward", "reductions", start=case.actions.index("drop"))


@requirement("communication/recomputed", SHARDED, Feature.CHECKPOINT, ranks=2)
@example(case=RICH)
@given_half(case=training_cases(steps=2))
def test_recomputation_gathers_no_more(trial: Trial, case: TrainingCase) -> None:
    """Blocks that run again in backward use what was gathered for backward, and have it gathered no second time."""
    communicates(trial, case, "backward", program=play_recomputed)


@requirement("communication/own-collectives", SHARDED, OWN, ranks=2)
@example(case=TINY)
@given_half(case=training_cases(exact=True))
def test_collectives_of_the_user_take_the_place_of_others(trial: Trial, case: TrainingCase) -> None:
    """Custom collectives do every gather and reduction, on what they allocate, all of it written, and train right."""
    found = trial.run(own_collectives.train_with_own_collectives, case)
    agrees(trial, [got.pop("trace") for got in found], expected(case))
    for number, got in enumerate(found):
        trial.agree(f"rank {number}, calls", got, dict.fromkeys(got, 0))


@requirement("communication/own-results", SHARDED, OWN, level="should", ranks=2)
@given_half(case=training_cases(steps=1))
def test_collectives_of_the_user_may_look_at_their_results(trial: Trial, case: TrainingCase) -> None:
    """Training calls custom collectives without async_op: what they return from is done, and they may go on with it."""
    finds(trial, own_collectives.asked_to_return_early, case, {"early": 0, "none at all": 0})


@requirement("communication/own-work", SHARDED, OWN, level="should", ranks=2)
@given_half(case=training_cases(exact=True))
def test_work_of_the_users_gathers_is_waited_for(trial: Trial, case: TrainingCase) -> None:
    """A custom all-gather may always return work, which is waited for before what it gathers is used."""
    follows(trial, own_collectives.returned_work, expected(case))


@requirement("communication/group-apart", SHARDED, Feature.ONE_MESSAGE, APART, OWN, ranks=2)
@given_half(case=training_cases(steps=1))
def test_reductions_may_have_a_group_of_their_own(trial: Trial, case: TrainingCase) -> None:
    """set_separate_reduce_scatter_group gives all reductions one group of the same ranks, kept until it is undone."""
    for number, found in enumerate(trial.run(own_collectives.groups_of_reductions, case)):
        count = len(wire.group_sizes(case))
        fact: dict[str, Any] = {"gathers": [0], "reductions": [], "ranks": [wire.sharers(case, number)] * count}
        trial.agree(f"rank {number}", found, [{**fact, "reductions": [group] * count} for group in (0, 1, 1, 0)])


@requirement("communication/group-apart-trains", SHARDED, APART, ranks=2)
@example(case=replace(TINY, acts=("set separate_reduce_scatter_group True", *TINY.actions)))
@given_half(case=set_on_all("separate_reduce_scatter_group True"))
def test_a_group_of_their_own_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """With reductions in a group of their own training is the unsharded model's."""
    follows(trial, play, expected(case))


WITH_MEMORY = "allocate_memory_from_process_group_for_comm True in each"
FLOATS = replace(TINY, acts=(f"set {WITH_MEMORY}", *TINY.actions))


#: The thread world's process group is no backend's, and has no memory to ask for.
@requirement("communication/group-memory", SHARDED, Feature.GROUP_MEMORY, ranks=2, worlds=("processes",))
@example(case=FLOATS)
@example(case=replace(FLOATS, dtype="float64"))
@given_half(case=set_on_all(WITH_MEMORY))
def test_memory_of_the_group_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """With buffers of the process group, or ordinary ones where it has none, training is the unsharded model's."""
    follows(trial, play, expected(case))


@requirement("communication/refuses-both", SHARDED, Feature.GROUP_MEMORY, OWN, level="should")
def test_memory_of_the_group_is_refused_for_custom_collectives(trial: Trial) -> None:
    """Asking for the group's memory after setting a custom all-gather raises an error that says so."""
    trial.refuses(own_collectives.memory_of_the_group, TINY, "custom", "set_custom_all_gather")


@requirement("communication/input-buffers", SHARDED, Feature.INPUT_BUFFERS, ranks=2)
@each(TINY, acts=[(f"set reduce_scatter_max_input_buffers {room}", *TINY.actions) for room in (1, 2, 3)])
@given_half(case=room_cases)
def test_room_for_inputs_of_reductions_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """However many inputs of reductions each module may keep in memory, training is the unsharded model's."""
    follows(trial, play, expected(case))


@requirement("communication/refuses-room", SHARDED, Feature.INPUT_BUFFERS)
@pytest.mark.parametrize("value", ["0", "2.5", "True"])
def test_room_that_is_no_positive_int_is_refused(trial: Trial, value: str) -> None:
    """A number of input buffers below 1, and one that is not an int, or a bool, raise an error that says so."""
    case = replace(TINY, acts=(f"set reduce_scatter_max_input_buffers {value}",))
    trial.refuses(play, case, "reduce_scatter_max_input_buffers", "max_input_buffers", "buffer", error=TYPE_ERRORS)


@requirement("communication/refuses-resharding", SHARDED, level="should")
def test_setting_resharding_to_a_number_is_refused(trial: Trial) -> None:
    """set_reshard_after_forward of anything but a bool raises an error that asks for a bool."""
    case = replace(TINY, acts=("set reshard_after_forward 2",))
    trial.refuses(play, case, "bool", "reshard_after_forward", error=TYPE_ERRORS)


def communicates(
    trial: Trial, case: TrainingCase, verb: str = "", kind: Kind = "", program: Program = play
) -> list[Any]:
    """Compare what ranks say in two passes once gradients have been dropped; all that could be seen."""
    case = replace(case, steps=max(case.steps, 2))  # those of older records may have had one
    traces = trial.run(program, case)
    says(trial, case, traces, verb, kind, start=case.actions.index("drop"))
    return traces
