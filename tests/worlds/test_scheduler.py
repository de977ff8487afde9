"""The lockstep scheduler: one rank at a time, in an order that repeats; what stops them all is seen, and told."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.vendor.backends import gloo
from harness.vendor.torch_fsdp2 import implementation
from harness.worlds.base import first_cause
from harness.worlds.rank import Rank
from harness.worlds.threads.role import ThreadRanks
from harness.worlds.threads.scheduler import Lockstep, ThreadPool
from tests.worlds.helpers import fates
from tests.worlds.lockstep_runs import run, values

at_work: list[int] = []


# Order and time.


def begins(rank: Rank) -> None:
    """Note who began."""
    at_work.append(rank.number)


def order(seed: int) -> list[int]:
    """In which order eight ranks begin."""
    at_work.clear()
    run(begins, 8, seed=seed)
    return list(at_work)


def test_a_seed_decides_the_order() -> None:
    """One seed gives one order, other seeds others, and seed 0 the order of the ranks."""
    orders = [order(seed) for seed in (0, 1, 2, 3)]
    assert orders == [order(seed) for seed in (0, 1, 2, 3)]
    assert orders[0] == list(range(8))
    assert len({tuple(one) for one in orders}) == 4
    assert all(sorted(one) == list(range(8)) for one in orders)


def counts_alone(rank: Rank) -> int:
    """Add to a shared number in two steps, with waits between: no rank may come in between the two."""
    for _ in range(20):
        seen = at_work[0]
        sum(range(2000))
        at_work[0] = seen + 1
        dist.barrier()
    return at_work[0]


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31))
def test_exactly_one_rank_runs_at_a_time(seed: int) -> None:
    """Between two waits a rank is alone, whatever the order: no update is lost."""
    at_work[:] = [0]
    assert max(values(run(counts_alone, 3, seed=seed))) == 60


def test_sixty_four_ranks_meet() -> None:
    """Many ranks are no trouble: 64 of them add up."""
    assert values(run(adds_up, 64)) == [64 * 65 / 2] * 64


def adds_up(rank: Rank) -> float:
    """The sum of all ranks' numbers, from one."""
    total = torch.tensor(rank.number + 1.0)
    dist.all_reduce(total)
    return float(total)


# Random numbers.


def draws(rank: Rank) -> list[float]:
    """Three random numbers, with a wait after each; rank 1 first sets another seed."""
    if rank.number == 1:
        torch.manual_seed(7)
    drawn = []
    for _ in range(3):
        drawn.append(float(torch.rand(())))
        dist.barrier()
    return drawn


def test_each_rank_has_random_numbers_of_its_own() -> None:
    """What one rank seeds or draws does not change what another draws, in any order, nor what comes after the run."""
    torch.manual_seed(3)
    first, second = values(run(draws, 2))
    left = torch.rand(())
    torch.manual_seed(3)
    assert torch.rand(()) == left
    torch.manual_seed(0)
    assert first == [float(torch.rand(())) for _ in range(3)]
    torch.manual_seed(7)
    assert second == [float(torch.rand(())) for _ in range(3)]
    assert values(run(draws, 2, seed=5)) == [first, second]


# What goes wrong.


def waits_for_nobody(rank: Rank) -> None:
    """Rank 2 leaves; 0 and 1 meet without it; rank 3 waits for a key."""
    if rank.number == 3:
        dist.distributed_c10d._get_default_store().wait(["a key that nobody sets"])
    elif rank.number != 2:
        dist.all_reduce(torch.ones(2, dtype=torch.int64))


def test_a_deadlock_is_seen_at_once_with_every_stack() -> None:
    """When no rank can run, each one is told who waits where and who is missing, and shows its own stack."""
    outcomes = run(waits_for_nobody, 4)
    assert fates(outcomes) == ["deadlocked", "deadlocked", "returned", "deadlocked"]
    for number in (0, 1, 3):
        words = outcomes[number].error
        assert "deadlock: no rank can run any more (3 of 4 wait)" in words
        assert re.search(r"rank 0 waits in all_reduce\(int64\[2\], SUM\) .*not yet joined by rank 2, 3\]", words)
        assert re.search("rank 3 waits in store wait for .*a key that nobody sets", words)
        assert "rank 2 had already returned" in words
        assert "waits_for_nobody" in outcomes[number].traceback


def test_a_rank_that_raises_is_the_cause_and_its_peers_are_victims() -> None:
    """The ranks that wait for one that raised are interrupted, and told which one had failed."""
    outcomes = run(rank_one_raises, 3)
    assert fates(outcomes) == ["interrupted", "raised", "interrupted"]
    assert first_cause(outcomes) is outcomes[1]
    assert outcomes[1].error == "MemoryError: out of memory"
    assert "waiting in barrier" in outcomes[0].error
    assert "rank 1 had failed" in outcomes[0].error


def rank_one_raises(rank: Rank) -> None:
    """Rank 1 raises while the others wait for it."""
    if rank.number == 1:
        raise MemoryError("out of memory")
    dist.barrier()


def test_ranks_can_run_again_after_a_failure() -> None:
    """A failed run leaves nothing to the next one on the same threads."""
    ranks = ThreadRanks(3, implementation, gloo)
    for _ in range(2):
        assert values(ranks.run(adds_up)) == [6.0] * 3
        assert "raised" in fates(ranks.run(rank_one_raises))
        assert "deadlocked" in fates(ranks.run(rank_zero_alone))
    assert values(ranks.run(adds_up)) == [6.0] * 3
    ranks.close()


def rank_zero_alone(rank: Rank) -> None:
    """Rank 0 waits for ranks that are gone."""
    if rank.number == 0:
        dist.barrier()


def test_a_deadline_names_the_rank_that_was_running() -> None:
    """The rank that holds the run token when the time is up has hung; those that wait for it are its victims."""
    go_on = threading.Event()
    ranks = ThreadRanks(3, implementation, gloo)
    outcomes = ranks.run(rank_one_stays, go_on, deadline=2)
    go_on.set()
    assert fates(outcomes) == ["interrupted", "hung", "interrupted"]
    assert outcomes[1].error == "still running after its deadline of 2 s"
    assert "rank_one_stays" in outcomes[1].traceback
    assert "waiting in barrier" in outcomes[0].error
    assert "while rank 1 ran on" in outcomes[0].error


def rank_one_stays(rank: Rank, go_on: threading.Event) -> None:
    """Rank 1 holds the run token and does not hand it on."""
    if rank.number == 1:
        go_on.wait()
    dist.barrier()


def test_another_thread_cannot_take_part() -> None:
    """A thread that a rank starts is no rank: its collective is refused with what to do instead."""
    refusal = values(run(uses_a_thread, 2))[0]
    assert "is no rank of this thread world" in refusal
    assert "run this in the process world" in refusal


def uses_a_thread(rank: Rank) -> str:
    """Wait for a key in a thread of one's own; what it raised there."""
    raised: list[str] = []
    store = dist.distributed_c10d._get_default_store()

    def wait() -> None:
        try:
            store.wait(["never"])
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    return raised[0]


# The pool.


def test_a_crew_leaves_no_threads() -> None:
    """After ``close`` every thread has ended."""
    before = threading.active_count()
    pool = ThreadPool(8)
    assert threading.active_count() == before + 8
    assert [outcome.value for outcome in Lockstep(pool).run([lambda number=n: number for n in range(8)])] == list(
        range(8)
    )
    pool.close()
    assert threading.active_count() == before


# The store.


def uses_the_store(rank: Rank) -> Any:
    """Every kind of use, across ranks: rank 1 waits for what rank 0 sets later."""
    store = dist.distributed_c10d._get_default_store()
    if rank.number == 0:
        dist.barrier()
        store.set("greeting", "hello")
    else:
        dist.barrier()
        store.wait(["greeting"], timedelta(seconds=1))
    count = store.add("count", rank.number + 1)
    won = store.compare_set("winner", "", str(rank.number))
    dist.barrier()
    return store.get("greeting"), count, won, store.add("count", 0), store.check(["winner"]), store.check(["loser"])


@pytest.mark.parametrize("seed", range(4))
def test_ranks_share_a_store(seed: int) -> None:
    """A wait ends when the key is set, counters add up, and the first to compare and set wins, in any order."""
    ends = values(run(uses_the_store, 3, seed=seed))
    assert {end[0] for end in ends} == {b"hello"}
    steps = sorted(zip([end[1] for end in ends], [1, 2, 3], strict=True))
    assert [b[0] - a[0] for a, b in pairwise([(0, 0), *steps])] == [own for _, own in steps]
    assert len({end[2] for end in ends}) == 1
    assert {end[3:] for end in ends} == {(6, True, False)}


def keeps_keys(rank: Rank) -> Any:
    """Bytes come back as they are, and a deleted key is gone."""
    store = dist.distributed_c10d._get_default_store()
    key = f"own {rank.number}"
    store.set(key, b"\x00\xff")
    return store.get(key), store.delete_key(key), store.delete_key(key), store.check([key])


def test_keys_can_be_deleted() -> None:
    """Deleting says whether the key was there."""
    assert values(run(keeps_keys, 2)) == [(b"\x00\xff", True, False, False)] * 2
