"""The floor: what composable FSDP, and the tools around it, ask of a backend's process group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.worlds.base import Program
from suites.collectives import collective_programs as programs
from suites.collectives.collective_cases import (
    EXCHANGES,
    FROM_ONE,
    GATHERS,
    IN_PLACE,
    MARK,
    REDUCING,
    Collective,
    CollectiveCase,
    Kind,
)
from suites.collectives.collective_oracle import allowance, as_bytes, wanted
from suites.collectives.collective_strategies import (
    ALL,
    FLOATS,
    MOVED,
    SUMMED,
    alone,
    collective_cases,
    every,
    groups_of,
    growing,
    in_each_group,
    long,
    often,
    overlapping,
    strided,
    unusual,
)
from suites.kit.strategies import examples, given
from suites.saving.checkpoint_strategies import directory

#: What gloo writes once: a reduce-scatter's result it writes at every wait.
ONCE: tuple[Kind, ...] = (*GATHERS, "scatter", *IN_PLACE)
#: Half of each number, added up.
HALVES = Collective("all_reduce", 3, "bfloat16", "PREMUL_SUM", "rounded", factor=0.5)


@requirement("collectives/all-gather", ranks=2)
@example(case=long(*GATHERS))
@example(case=every(GATHERS, MOVED))
@given(case=collective_cases(GATHERS, MOVED, data="bits"))
def test_an_all_gather_brings_the_bits_of_all_ranks_in_their_order(trial: Trial, case: CollectiveCase) -> None:
    """An all-gather, into one tensor or a list, gives every rank the bits that each rank has, in the order of ranks."""
    is_right(trial, case)


@requirement("collectives/all-gather-in-place", ranks=2)
@example(case=every(["all_gather_in_place"], MOVED))
@given(case=collective_cases(["all_gather_in_place"], MOVED, data="bits"))
def test_an_all_gather_may_have_its_input_within_its_output(trial: Trial, case: CollectiveCase) -> None:
    """An all-gather whose input is this rank's place in its output is right as well: this is how FSDP gathers."""
    is_right(trial, case)


@requirement("collectives/from-one", ranks=2)
@example(case=long(*FROM_ONE))
@example(case=every(FROM_ONE, MOVED))
@given(case=collective_cases(FROM_ONE, MOVED, data="bits"))
def test_broadcast_and_scatter_bring_what_the_source_has(trial: Trial, case: CollectiveCase) -> None:
    """Broadcast and scatter give every rank the bits that the source has for it, whichever rank that is."""
    is_right(trial, case)


@requirement("collectives/all-to-all", level="should", ranks=2)
@example(case=every(EXCHANGES, MOVED))
@given(case=collective_cases(EXCHANGES, MOVED, data="bits"))
def test_an_exchange_brings_each_rank_its_part_of_every_other(trial: Trial, case: CollectiveCase) -> None:
    """All-to-all of one tensor gives every rank its part of each rank's tensor, in parts of equal or of given sizes."""
    is_right(trial, case)


@requirement("collectives/exact", ranks=2)
@example(case=long(*REDUCING, data="whole"))
@example(case=every(REDUCING, SUMMED, "SUM", "MAX", "MIN", data="whole"))
@given(case=collective_cases(REDUCING, SUMMED, op=st.sampled_from(["SUM", "MAX", "MIN"])))
def test_reductions_of_whole_numbers_are_exact(trial: Trial, case: CollectiveCase) -> None:
    """SUM, MAX and MIN of whole numbers that a dtype can hold are exact in all-reduce and reduce-scatter."""
    is_right(trial, case)


@requirement("collectives/sum", ranks=2)
@example(case=every(REDUCING, FLOATS, data="rounded"))
@given(case=collective_cases(REDUCING, FLOATS, data="rounded"))
def test_sums_are_off_by_some_roundings_of_their_dtype_at_most(trial: Trial, case: CollectiveCase) -> None:
    """A SUM of fractions is off by no more than adding once per rank in the dtype of the tensors, in any order."""
    is_right(trial, case)


@requirement("collectives/average", ranks=2)
@example(case=replace(alone("reduce_scatter_single", 1, op="AVG", data="rounded"), sizes=36))
@example(case=every(REDUCING, FLOATS, "AVG", data="rounded"))
@given(case=collective_cases(REDUCING, FLOATS, op="AVG", data="rounded"))
def test_averages_are_sums_divided_by_the_number_of_ranks(trial: Trial, case: CollectiveCase) -> None:
    """AVG is the sum divided once by the number of ranks in the group, for every size of tensors."""
    is_right(trial, case)


@requirement("collectives/infinite", ranks=2)
@example(case=every(REDUCING, FLOATS, "SUM", "AVG", data="infinite"))
@example(case=every(REDUCING, FLOATS, data="largest"))
@given(case=collective_cases(REDUCING, FLOATS, op=st.sampled_from(["SUM", "AVG"]), data="infinite"))
def test_what_overflows_is_infinite_on_every_rank(trial: Trial, case: CollectiveCase) -> None:
    """Infinities, NaNs, and sums that are too large for the dtype arrive as such: loss scaling looks for them."""
    is_right(trial, case)


@requirement("collectives/premul-sum", ranks=2, limits=("premul_sum",))
@example(case=CollectiveCase(2, tuple(replace(HALVES, kind=kind) for kind in REDUCING)))
@given(
    case=collective_cases(
        REDUCING, FLOATS, op="PREMUL_SUM", data="rounded", factor=st.sampled_from([0.5, 0.25, 1 / 3, 1.0, 3.0])
    )
)
def test_a_premultiplied_sum_is_a_sum_times_its_factor(trial: Trial, case: CollectiveCase) -> None:
    """PREMUL_SUM is the sum of all ranks' numbers times the factor, and leaves its inputs as they were."""
    is_right(trial, case)


@requirement("collectives/replicas", ranks=2)
@example(case=every(["all_reduce"], FLOATS, "SUM", "AVG", data="rounded"))
@given(case=collective_cases(["all_reduce"], FLOATS, op=st.sampled_from(["SUM", "AVG"]), data="rounded"))
def test_an_all_reduce_gives_all_ranks_the_same_bits(trial: Trial, case: CollectiveCase) -> None:
    """An all-reduce gives all ranks the same bits, however it rounds: replicas would drift apart."""
    first, *others = as_bytes(trial.run(programs.performed, case))
    for number, got in enumerate(others, 1):
        trial.agree(f"rank {number}, as rank 0", [each["got"] for each in got], [each["got"] for each in first])


@requirement("collectives/repeatable", level="should", ranks=2)
@given(case=collective_cases(REDUCING, FLOATS, op=st.sampled_from(["SUM", "AVG"]), data="rounded"))
def test_a_reduction_gives_the_same_bits_again(trial: Trial, case: CollectiveCase) -> None:
    """A reduction of the same numbers in the same group gives the same bits when it is made again."""
    for number, (first, again) in enumerate(as_bytes(trial.run(programs.performed_twice, case))):
        trial.agree(f"rank {number}, again", again, first)


@requirement("collectives/fresh", ranks=2)
@given(case=often(collective_cases(ALL, FLOATS)))
def test_every_call_sends_what_tensors_hold_by_then(trial: Trial, case: CollectiveCase) -> None:
    """Many calls in a row with the same tensors each give what those hold at the time, and nothing of earlier calls."""
    is_right(trial, case, programs.in_the_same_memory)


@requirement("collectives/growing", ranks=2)
@examples([CollectiveCase(2, tuple(Collective(kind, size) for size in (3, 700, 5000, 20_001))) for kind in ALL])
@given(case=growing())
def test_longer_messages_in_the_same_memory_are_whole(trial: Trial, case: CollectiveCase) -> None:
    """Calls on longer and longer parts of the same memory, each from its beginning, are right to their last number."""
    is_right(trial, case, programs.in_growing_parts)


@requirement("collectives/side-by-side", ranks=2)
@example(case=CollectiveCase(2, tuple(Collective(kind, 3, data="rounded") for kind in ALL)))
@given(case=collective_cases(ALL, FLOATS))
def test_inputs_and_outputs_may_be_parts_of_one_memory(trial: Trial, case: CollectiveCase) -> None:
    """Collectives whose inputs and outputs lie side by side in one memory are right, and leave inputs as they were."""
    is_right(trial, case, programs.side_by_side)


@requirement("collectives/waited-again", level="should", ranks=2)
@example(case=every(ONCE, ["float32"], "SUM", "MIN", "AVG", data="whole"))
@given(case=collective_cases(ONCE, FLOATS, large=False))
def test_a_second_wait_writes_nothing(trial: Trial, case: CollectiveCase) -> None:
    """Work that is waited for once more, and asked whether it is completed, leaves alone what was written since."""
    for number, got in enumerate(trial.run(programs.waited_again, case)):
        for call, outputs in zip(case.steps, got, strict=True):
            due = [torch.full_like(output, MARK) for output in outputs]
            trial.agree(f"rank {number}, {call.words()}", outputs, due)


@requirement("collectives/untouched", ranks=2)
@example(case=CollectiveCase(2, tuple(Collective(kind, 3, layout="inside", data="rounded") for kind in ALL)))
@given(case=collective_cases(ALL, FLOATS, layout="inside", op=st.sampled_from(["SUM", "AVG", "MAX"]), data="rounded"))
def test_nothing_but_outputs_is_written(trial: Trial, case: CollectiveCase) -> None:
    """Collectives on parts of larger buffers are right, and change neither inputs nor what lies beside outputs."""
    is_right(trial, case)


@requirement("collectives/async", ranks=2)
@given(case=collective_cases(ALL, FLOATS, most_calls=7))
def test_results_are_there_once_they_were_waited_for(trial: Trial, case: CollectiveCase) -> None:
    """Of calls in flight at once each has its result once it was waited for, in whatever order, with inputs let go."""
    is_right(trial, case, programs.in_flight)


@requirement("collectives/completed", level="should", ranks=2)
@example(case=every(ALL, ["float32"], data="whole"))
@given(case=collective_cases(ALL, FLOATS, large=False))
def test_work_that_was_waited_for_says_that_it_is_done(trial: Trial, case: CollectiveCase) -> None:
    """Work that was waited for, and whose results were read, says that it is completed."""
    for number, got in enumerate(trial.run(programs.in_flight, case)):
        for place, call in enumerate(case.steps):
            where = f"rank {number}, call {place}, {call.words()}"
            trial.holds(got[place]["completed"], f"{where}: is_completed() is False after wait()")


@requirement("collectives/sub-groups", ranks=2)
@example(case=CollectiveCase(3, tuple(Collective(kind, 3, root=root) for kind in ALL for root in (0, 1)), ((1, 2),)))
@given(case=collective_cases(ALL, FLOATS, groups=groups_of))
def test_a_group_of_some_ranks_is_right_among_itself(trial: Trial, case: CollectiveCase) -> None:
    """Collectives in a group of some ranks, which need not include rank 0, are right by the places of ranks in it."""
    is_right(trial, case)


@requirement("collectives/two-groups", ranks=2)
@example(case=CollectiveCase(2, tuple(Collective(kind, 3) for kind in ALL for _ in (0, 1)), ((0, 1), (0, 1))))
@given(case=in_each_group(collective_cases(ALL, FLOATS, groups=overlapping, most_calls=3)))
def test_groups_that_share_ranks_do_not_disturb_each_other(trial: Trial, case: CollectiveCase) -> None:
    """Calls in flight at once in groups that share ranks, or have the same ranks, each have their own results."""
    is_right(trial, case, programs.in_flight)


@requirement("collectives/restarted", level="should", ranks=2, worlds=("processes",))
@example(case=every(REDUCING, ["float32"], "AVG", data="multiples"))
@given(case=collective_cases(ALL, FLOATS, most_calls=2, large=False, root=0))
def test_fewer_ranks_may_begin_again(trial: Trial, case: CollectiveCase) -> None:
    """Where ranks destroy their process group, and fewer begin another in the same processes, all is right there."""
    with directory() as path:
        for number, done in enumerate(trial.run(programs.after_restarts, case, path)):
            for size, got in zip(range(case.world_size, 0, -1), done, strict=False):
                for place in range(len(case.steps)):
                    _agrees(trial, replace(case, world_size=size), place, number, got[place])


@requirement("collectives/unusual", ranks=2)
@example(case=alone("all_gather_single", 0))
@example(case=alone("all_reduce", 3, "int64", "AVG", "multiples"))
@example(case=alone("all_reduce", 3, "int64", "BAND"))
@given(case=unusual())
def test_what_a_backend_may_lack_is_right_or_refused(trial: Trial, case: CollectiveCase) -> None:
    """Empty tensors, rare dtypes, averages and bits of integers give the right result, or an error on every rank."""
    is_right_or_refused(trial, case)


@requirement("collectives/strided", level="should", ranks=2)
@example(case=alone("all_gather_single", 4, layout="strided"))
@example(case=alone("reduce_scatter_single", 4, layout="transposed"))
@given(case=strided((*GATHERS, "reduce_scatter_single")))
def test_strided_tensors_are_gathered_and_reduced_rightly_or_refused(trial: Trial, case: CollectiveCase) -> None:
    """All-gather, and reduce-scatter of one tensor, are right where tensors are strided, or an error on every rank."""
    is_right_or_refused(trial, case)


@requirement("collectives/strided-others", level="should", ranks=2)
@example(case=alone("all_reduce", 4, layout="strided"))
@given(case=strided(("reduce_scatter", "all_reduce", *FROM_ONE, "all_to_all_single")))
def test_strided_tensors_are_sent_rightly_or_refused(trial: Trial, case: CollectiveCase) -> None:
    """Other collectives are right where tensors are strided, or an error on every rank."""
    is_right_or_refused(trial, case)


def is_right(trial: Trial, case: CollectiveCase, program: Program = programs.performed) -> None:
    """Require of every rank that its memory after each call is as it must be, to its last number."""
    for number, got in enumerate(trial.run(program, case)):
        for place in range(len(case.steps)):
            _agrees(trial, case, place, number, got[place])


def is_right_or_refused(trial: Trial, case: CollectiveCase) -> None:
    """Require the same up to the first call that a rank refuses, which all ranks must then refuse, saying why."""
    everything = trial.run(programs.tried, case)
    for place, call in enumerate(case.steps):
        got = [ranks[place] for ranks in everything]
        refusals = [each.get("raised") for each in got]
        if any(refusals):
            ended = ", ".join(f"rank {number}: {words or 'a result'}" for number, words in enumerate(refusals))
            trial.holds(all(refusals), f"{call.words()}: expected results or errors on all ranks, but got {ended}")
            return
        for number, each in enumerate(got):
            _agrees(trial, case, place, number, each)


def _agrees(trial: Trial, case: CollectiveCase, place: int, rank: int, got: Any) -> None:
    call, want = case.steps[place], wanted(case, place, rank)
    where = f"rank {rank}, call {place}, {call.words()}"
    if call.data == "bits":
        got, want = as_bytes(got), as_bytes(want)
    if "given" in got:
        trial.agree(where, got["given"], want.get("given"))
    trial.agree(where, got.get("got"), want.get("got"), within=allowance(case, place, rank))
