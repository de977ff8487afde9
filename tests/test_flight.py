"""Ranks of a process world that hang in collectives are told apart by what torch's flight recorder knows of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.rank import Rank
from harness.worlds import desync, flight, hosts
from harness.worlds.base import Fate, Outcome, first_cause
from harness.worlds.make import open_world
from tests import programs
from tests.leftovers import nothing_left_behind, temporary  # noqa: F401
from tests.worlds import TORCH_ON_GLOO, check_that_it_works, fates

pytestmark = pytest.mark.alone

DEADLINE = 1.5
RETURNED, RAISED, HUNG, INTERRUPTED = Fate.RETURNED, Fate.RAISED, Fate.HUNG, Fate.INTERRUPTED
MISMATCHED, CRASHED = Fate.MISMATCHED, Fate.CRASHED
TIME = "still running after its deadline of 1.5 s, waiting in"


def ends_of(program: Any, size: int = 2) -> tuple[Outcome, ...]:
    """What becomes of ranks that run ``program``, which must be known soon after the deadline."""
    with open_world("processes", size, TORCH_ON_GLOO) as world:
        check_that_it_works(world)  # call 1 of each rank
        start = time.monotonic()
        outcomes = world.run(program, deadline=DEADLINE)
        assert time.monotonic() - start < DEADLINE + 2
    return outcomes


def calls_another(rank: Rank) -> None:
    """Rank 1 broadcasts where its peers add up."""
    if rank.number == 1:
        dist.broadcast(torch.ones(2, 3), 0)
    else:
        dist.all_reduce(torch.ones(5))


def test_different_collectives_are_a_mismatch_that_says_who_called_what() -> None:
    """Where ranks call different collectives, all of them are MISMATCHED, with everybody's call."""
    outcomes = ends_of(calls_another, 3)
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
    outcomes = ends_of(skips_one)
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
    outcomes = ends_of(programs.meets_alone)
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
    outcomes = ends_of(crosses_groups)
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
    outcomes = ends_of(sleeps_last_in_line, 3)
    assert fates(outcomes) == [INTERRUPTED, INTERRUPTED, HUNG]
    assert "in sleeps_last_in_line" in outcomes[2].error


def test_tracebacks_end_with_the_last_collectives() -> None:
    """Every rank's traceback shows what it called last; what a rank raised stays what it was."""
    outcomes = ends_of(programs.raises_on_one)
    assert fates(outcomes) == [INTERRUPTED, RAISED]
    called = "\n\nlast collectives:\n  #1 all_reduce Float[3] on group 0 (default_pg)\n"
    assert outcomes[1].traceback.endswith("MemoryError: out of memory" + called)
    assert outcomes[0].traceback.endswith(called + "  #2 all_reduce Float[1] on group 0 (default_pg), not completed\n")


def writes_garbage(rank: Rank) -> None:
    """Rank 1 makes its host answer nonsense, and hangs like rank 0."""
    if rank.number == 1:
        vars(flight)["json"] = SimpleNamespace(loads=json.loads, dumps=lambda _: "[" * 100_000)
    calls_another(rank)


def writes_nothing(rank: Rank) -> None:
    """Rank 1 makes its host fail to answer, and hangs like rank 0."""
    if rank.number == 1:
        vars(flight)["_groups"] = object
    calls_another(rank)


@pytest.mark.parametrize("program", [writes_garbage, writes_nothing])
def test_a_rank_without_a_flight_is_judged_as_ever(program: Any) -> None:
    """A host that answers nonsense, or not at all, costs a bounded time and nothing but the diagnosis."""
    outcomes = ends_of(program)
    assert fates(outcomes) == [HUNG, HUNG]
    assert "not completed" in outcomes[0].traceback
    assert "last collectives" not in outcomes[1].traceback


def test_a_process_that_is_used_again_has_forgotten_its_last_world() -> None:
    """The flight of a rank process that is kept starts with its present process group."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        before = world.run(programs.shows_surroundings)
        check_that_it_works(world)
        check_that_it_works(world)
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        assert [end.value["pid"] for end in world.run(programs.shows_surroundings)] == [e.value["pid"] for e in before]
        told = world.run(programs.raises_on_all)[0].traceback
        check_that_it_works(world)
    assert fates(hosts.shutdown_pool()) == [RETURNED, RETURNED]
    assert "last collectives" not in told


# What is read and judged, on its own.


def entry(number: int, name: str = "all_reduce", size: int = 4, **changes: Any) -> dict[str, Any]:
    """A call of group 0 as hosts write it."""
    tensors = {f"{side}_{key}": [value] for side in ("input", "output") for key, value in
               (("sizes", [size]), ("dtypes", "Float"))}  # fmt: skip
    fixed = {"process_group": ["0", "default_pg"], "retired": False, "state": "scheduled", "is_p2p": False}
    return {"collective_seq_id": number, "profiling_name": f"gloo:{name}", **tensors, **fixed, **changes}


def read_back(tmp_path: Path, *calls: Any, **changes: Any) -> flight.Flight | None:
    """The flight that the controller reads where a host has written these calls."""
    tree = {"calls": calls, "groups": {"0": [0, 1]}, "is_cut": False, **changes}
    (tmp_path / "flight").write_text(json.dumps(tree))
    return flight.read(tmp_path)


def test_what_strangers_write_is_made_fit_for_a_line(tmp_path: Path) -> None:
    """Names are cut and lose what would break lines or cannot be written."""
    found = read_back(tmp_path, entry(1, "a\nb\ud800" + "x" * 1000))
    assert found is not None
    assert found.calls[0].operation == "a?b?" + "x" * 71


BROKEN: dict[str, dict[str, Any]] = {
    "no list of calls": {"calls": 5},
    "a call that is a list": {"calls": [[]]},
    "a call without a field": {"calls": [{**entry(1), "retired": None}]},
    "an infinite size": {"calls": [entry(1, input_sizes=[[float("inf")]])]},
    "an enormous size": {"calls": [entry(1, input_sizes=[[10**30]])]},
    "a size for a shape": {"calls": [entry(1, input_sizes=[5])]},
    "a dtype without a shape": {"calls": [entry(1, input_sizes=[])]},
    "a list for a dtype": {"calls": [entry(1, input_dtypes=[[5]])]},
    "megabytes": {"calls": [entry(1, padding="x" * (4 << 20))]},
    "no ranks": {"groups": {"0": 5}},
    "ranks that are no numbers": {"groups": {"0": [1.5]}},
    "too many ranks": {"groups": {"0": [0] * 10_000}},
    "no flag": {"is_cut": "no"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_flight_of_another_shape_is_none(name: str, tmp_path: Path) -> None:
    """A file that is valid JSON but not what a host of ours writes is no flight, and breaks nothing."""
    assert read_back(tmp_path, entry(1)) is not None
    assert read_back(tmp_path, **{"calls": [], **BROKEN[name]}) is None


STRANGE: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link": lambda path: os.symlink("/dev/zero", path),
    "deep brackets": lambda path: path.write_text("[" * 1_000_000) and None,
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00") and None,
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_file_of_json_is_none(name: str, tmp_path: Path) -> None:
    """The controller waits for no pipe, follows no link, and survives that there is nothing."""
    STRANGE[name](tmp_path / "flight")
    assert flight.read(tmp_path) is None
    assert not flight.ask(tmp_path)


def test_nobody_listens_where_no_host_is(tmp_path: Path) -> None:
    """Asking through a pipe that nobody reads ends at once and is no answer to wait for."""
    os.mkfifo(tmp_path / "flight-requests")
    assert not flight.ask(tmp_path)


JUDGED = {
    "another size": ([entry(1, size=4)], [entry(1, size=5)], True),
    "the same size in another shape": ([entry(1)], [entry(1, input_sizes=[[2, 2]])], False),
    "another dtype": ([entry(1)], [entry(1, input_dtypes=["Int"])], True),
    "elsewhere on another group": ([entry(1)], [entry(1, process_group=["7", ""])], True),
    "a root of scatter": ([entry(1, "scatter")], [entry(1, "scatter", input_sizes=[], input_dtypes=[])], False),
    "uneven all-to-all": ([entry(1, "all_to_all")], [entry(1, "all_to_all", 5)], False),
    "point to point": ([entry(1, "send", is_p2p=True)], [entry(1, "recv", 5, is_p2p=True)], False),
    "already over": ([entry(1, retired=True)], [entry(1, size=5, state="completed")], False),
    "one is over": ([entry(1)], [entry(1, "broadcast", retired=True)], True),
    "one is behind in what both call": ([entry(1, retired=True), entry(2)], [entry(1)], False),
}


@pytest.mark.parametrize("name", JUDGED)
def test_only_calls_that_cannot_meet_are_a_mismatch(name: str, tmp_path: Path) -> None:
    """Two hanging ranks are MISMATCHED if operation, dtype or shared size of an unfinished call differ, else HUNG."""
    first, second, differ = JUDGED[name]
    flights = {rank: read_back(tmp_path, *calls) for rank, calls in enumerate((first, second))}
    ends = [Outcome(rank, HUNG, error="late") for rank in flights]
    judged = desync.mismatched(ends, {rank: found for rank, found in flights.items() if found}, [0, 1])
    assert len([found for found in flights.values() if found]) == 2
    assert [end.fate for end in judged] == [MISMATCHED if differ else HUNG] * 2


@pytest.mark.parametrize(("is_cut", "fate"), [(False, MISMATCHED), (True, HUNG)])
def test_what_was_forgotten_is_not_what_never_was(is_cut: bool, fate: Fate, tmp_path: Path) -> None:
    """That a returned rank never made a call is only said if its flight goes back far enough."""
    waits, returned = read_back(tmp_path, entry(1)), read_back(tmp_path, is_cut=is_cut)
    assert waits is not None
    assert returned is not None
    judged = desync.mismatched([Outcome(0, HUNG, error="late")], {0: waits, 1: returned}, [0])
    assert [end.fate for end in judged] == [fate]
