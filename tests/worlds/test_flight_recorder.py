"""Ranks of a process world that hang in collectives are told apart by what torch's flight recorder knows of them."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from harness.worlds.base import Fate, Outcome, first_cause
from harness.worlds.make import open_world
from harness.worlds.processes import flight_recorder
from harness.worlds.rank import Rank
from harness.worlds.workers import supervised_world
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO, check_that_it_works, fates
from tests.worlds.leftovers import nothing_left_behind, temporary  # noqa: F401
from tests.worlds.programs import basic
from tests.worlds.programs.hanging import deadline_when_all_hang

RETURNED, RAISED, HUNG, INTERRUPTED = Fate.RETURNED, Fate.RAISED, Fate.HUNG, Fate.INTERRUPTED
MISMATCHED, CRASHED = Fate.MISMATCHED, Fate.CRASHED
TIME = f"still running after its deadline of {GUARD:g} s, waiting in"


def ends_of(program: Any, *hangs: str, size: int = 2) -> tuple[Outcome, ...]:
    """What becomes of ranks that run ``program``, and hang so, see ``deadline_when_all_hang``; or end by themselves."""
    with open_world("processes", size, TORCH_ON_GLOO) as world:
        check_that_it_works(world)  # call 1 of each rank
        with deadline_when_all_hang(world, hangs) if hangs else nullcontext():
            return world.run(program, deadline=GUARD)


def calls_another(rank: Rank) -> None:
    """Rank 1 broadcasts where its peers add up."""
    if rank.number == 1:
        dist.broadcast(torch.ones(2, 3), 0)
    else:
        dist.all_reduce(torch.ones(5))


def test_different_collectives_are_a_mismatch_that_says_who_called_what() -> None:
    """Where ranks call different collectives, all of them are MISMATCHED, with everybody's call."""
    outcomes = ends_of(calls_another, "all_reduce", "broadcast", "all_reduce", size=3)
    assert fates(outcomes) == [MISMATCHED] * 3
    assert outcomes[1].error == (
        "ranks disagree about call 2 on group 0 of ranks [0, 1, 2]:\n"
        "  rank 0 called all_reduce(Float[5])\n"
        "  rank 1 called broadcast(Float[2, 3])\n"
        "  rank 2 called all_reduce(Float[5])\n"
        f"{TIME} broadcast"
    )


def skips_one(rank: Rank) -> None:
    """Rank 1 leaves out an all-reduce and goes on to the all-gather after it."""
    if rank.number == 0:
        dist.all_reduce(torch.ones(5))
    dist.all_gather_into_tensor(torch.empty(12), torch.ones(6))


def test_a_rank_that_skips_a_collective_is_told() -> None:
    """Where rank 1 goes on to the next collective, the message shows that it is ahead of rank 0."""
    outcomes = ends_of(skips_one, "all_reduce", "all_gather")
    assert fates(outcomes) == [MISMATCHED, MISMATCHED]
    assert "\n  rank 0 called all_reduce(Float[5])\n  rank 1 called all_gather(Float[6])\n" in outcomes[0].error


def has_another_size(rank: Rank) -> None:
    """Rank 1 adds up more numbers than rank 0."""
    dist.all_reduce(torch.ones(5 + 4 * rank.number))


def test_other_sizes_end_in_what_happened() -> None:
    """Gloo aborts a rank that is sent too much: that stays a crash, whose log has gloo's own words about it."""
    outcomes = ends_of(has_another_size)
    first = first_cause(outcomes)
    assert first is not None
    assert fates(outcomes) == [CRASHED, INTERRUPTED]
    assert "killed by SIGABRT" in first.error
    assert "collective mismatch" in first.log
    assert "#2 all_reduce Float[9] on group 0 (default_pg)" in outcomes[1].traceback


def test_a_rank_that_returned_too_early_is_named() -> None:
    """A rank that waits for one that has returned is MISMATCHED, and the message names the other."""
    outcomes = ends_of(basic.meets_alone, "", "all_reduce")
    assert fates(outcomes) == [RETURNED, MISMATCHED]
    assert outcomes[1].error == (
        "ranks disagree about call 2 on group 0 of ranks [0, 1]:\n"
        "  rank 1 called all_reduce(Float[1])\n"
        "  rank 0 returned without calling it\n"
        f"{TIME} all_reduce"
    )


def crosses_groups(rank: Rank) -> None:
    """Ranks 0 and 1 call the same two collectives on two groups, in different orders."""
    groups = [dist.new_group([0, 1]), None]
    for group in groups if rank.number == 0 else reversed(groups):
        dist.all_reduce(torch.ones(4), group=group)


def test_ranks_that_wait_for_each_other_in_two_groups_are_told() -> None:
    """Of two ranks that wait on different groups, each is told which call the other has not made, and where it is."""
    outcomes = ends_of(crosses_groups, "all_reduce", "all_reduce")
    assert fates(outcomes) == [MISMATCHED, MISMATCHED]
    for end in outcomes:
        assert (
            f"\n  rank {end.rank} called all_reduce(Float[4])\n  rank {1 - end.rank} did not call it, but " in end.error
        )


def sleeps_last_in_line(rank: Rank) -> None:
    """Rank 0 waits for rank 1, which waits on another group for rank 2, which sleeps."""
    pair = dist.new_group([1, 2])
    if rank.number == 2:
        time.sleep(1000)
    if rank.number == 1:
        dist.all_reduce(torch.ones(4), group=pair)
    dist.all_reduce(torch.ones(4))


def test_a_rank_that_sleeps_elsewhere_is_the_culprit() -> None:
    """Who hangs outside of collectives stays HUNG, and all who wait for it, even through others, are its victims."""
    outcomes = ends_of(sleeps_last_in_line, "all_reduce", "all_reduce", "in sleeps_last_in_line", size=3)
    assert fates(outcomes) == [INTERRUPTED, INTERRUPTED, HUNG]
    assert "in sleeps_last_in_line" in outcomes[2].error


def raises_after_its_peer_has_called(rank: Rank) -> None:
    """Rank 0 waits in an all-reduce when rank 1 raises."""
    store = dist.distributed_c10d._get_default_store()
    if rank.number == 1:
        store.wait(["called"])
        raise MemoryError("out of memory")
    work = dist.all_reduce(torch.ones(1), async_op=True)
    store.set("called", "")
    work.wait()


def test_tracebacks_end_with_the_last_collectives() -> None:
    """Every rank's traceback shows what it called last; what a rank raised stays what it was."""
    outcomes = ends_of(raises_after_its_peer_has_called)
    assert fates(outcomes) == [INTERRUPTED, RAISED]
    called = "\n\nlast collectives:\n  #1 all_reduce Float[3] on group 0 (default_pg)\n"
    assert outcomes[1].traceback.endswith("MemoryError: out of memory" + called)
    assert outcomes[0].traceback.endswith(called + "  #2 all_reduce Float[1] on group 0 (default_pg), not completed\n")


def writes_nothing(rank: Rank) -> None:
    """Rank 1 makes its worker fail to answer, and hangs like rank 0."""
    if rank.number == 1:
        vars(flight_recorder)["_groups"] = object
    calls_another(rank)


def test_a_rank_without_a_flight_is_judged_as_ever() -> None:
    """A worker that cannot tell its flight costs nothing but the diagnosis."""
    outcomes = ends_of(writes_nothing, "all_reduce", "waiting in broadcast")
    assert fates(outcomes) == [HUNG, HUNG]
    assert "not completed" in outcomes[0].traceback
    assert "last collectives" not in outcomes[1].traceback


def test_a_process_that_is_used_again_has_forgotten_its_last_world() -> None:
    """The flight of a rank process that is kept starts with its present process group."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        before = world.run(basic.shows_surroundings)
        check_that_it_works(world)
        check_that_it_works(world)
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        assert [end.value["pid"] for end in world.run(basic.shows_surroundings)] == [e.value["pid"] for e in before]
        told = world.run(basic.raises_on_all)[0].traceback
        check_that_it_works(world)
    assert fates(supervised_world.shutdown_pool()) == [RETURNED, RETURNED]
    assert "last collectives" not in told
