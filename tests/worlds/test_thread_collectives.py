"""Collectives of the thread world: what each one gives, against plain torch; what is said of calls that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.collective_trace.torch_names import all_gather, premultiplied_sum, reduce_scatter
from harness.data.case import Case
from harness.worlds.base import Fate
from harness.worlds.rank import Rank
from tests.worlds.helpers import fates
from tests.worlds.lockstep_runs import run, values

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SUM": lambda rows: rows.sum(0, dtype=rows.dtype),
    "AVG": lambda rows: rows.sum(0) / len(rows),
    "PREMUL_SUM": lambda rows: rows.sum(0) / 4,
    "MIN": lambda rows: rows.amin(0),
    "MAX": lambda rows: rows.amax(0),
    "PRODUCT": lambda rows: rows.prod(0, dtype=rows.dtype),
    "BAND": lambda rows: folded(torch.bitwise_and, rows),
    "BOR": lambda rows: folded(torch.bitwise_or, rows),
    "BXOR": lambda rows: folded(torch.bitwise_xor, rows),
}
FLOATS, INTEGERS = ["float64", "float32", "bfloat16"], ["int64", "int32", "uint8"]


def folded(function: Callable[[Tensor, Tensor], Tensor], rows: Tensor) -> Tensor:
    """The function of all rows, one after the other."""
    result = rows[0]
    for row in rows[1:]:
        result = function(result, row)
    return result


@dataclass(frozen=True)
class Reduce(Case):
    """A reduction of small numbers, exact in every dtype."""

    world_size: int
    numel: int
    op: str = "SUM"
    dtype: str = "float32"
    seed: int = 0

    def numbers(self, rank: int, times: int = 1) -> Tensor:
        """What one rank brings: whole numbers from 1 to 3, whose products stay small."""
        generator = torch.Generator().manual_seed(self.seed * 100 + rank)
        return torch.randint(1, 4, (self.numel * times,), generator=generator).to(getattr(torch, self.dtype))

    def operation(self) -> Any:
        """The operation as torch takes it."""
        return premultiplied_sum(0.25) if self.op == "PREMUL_SUM" else getattr(dist.ReduceOp, self.op)

    def reduced(self, times: int = 1) -> Tensor:
        """What all of them come to, by plain torch."""
        rows = torch.stack([self.numbers(rank, times) for rank in range(self.world_size)])
        return REDUCTIONS[self.op](rows).to(rows.dtype)


@st.composite
def reduces(draw: st.DrawFn) -> Reduce:
    """Any operation on a dtype that it is defined for."""
    op = draw(st.sampled_from(list(REDUCTIONS)))
    only = FLOATS if op in ("AVG", "PREMUL_SUM") else INTEGERS if op[0] == "B" else FLOATS + INTEGERS
    return Reduce(
        draw(st.integers(1, 4)), draw(st.integers(0, 5)), op, draw(st.sampled_from(only)), draw(st.integers(0, 99))
    )


def reduce_in_every_way(rank: Rank, case: Reduce) -> dict[str, Tensor]:
    """Every collective that reduces: at once, asynchronously, coalesced, to one rank, scattered."""
    op, size = case.operation(), case.world_size
    mine, long = case.numbers(rank.number), case.numbers(rank.number, size)
    made = {name: mine.clone() for name in ("at once", "asynchronous", "coalesced", "to the last rank")}
    made |= {name: torch.empty_like(mine) for name in ("scattered", "scattered list", "scattered coalesced")}
    dist.all_reduce(made["at once"], op=op)
    work = dist.all_reduce(made["asynchronous"], op=op, async_op=True)
    with dist._coalescing_manager():
        dist.all_reduce(made["coalesced"], op=op)
    dist.reduce(made["to the last rank"], size - 1, op=op)
    reduce_scatter(made["scattered"], long, op=op)
    dist.reduce_scatter(made["scattered list"], list(long.chunk(size)) if case.numel else [mine] * size, op=op)
    with dist._coalescing_manager():
        reduce_scatter(made["scattered coalesced"], long, op=op)
    work.wait()
    return made


@settings(max_examples=40)
@given(case=reduces(), seed=st.integers(0, 3))
def test_every_reduction_equals_plain_torch(case: Reduce, seed: int) -> None:
    """SUM, AVG, PREMUL_SUM, MIN, MAX, PRODUCT and the bitwise ones, in every form, dtype, size and order of ranks."""
    short, long = case.reduced(), case.reduced(case.world_size)
    for number, made in enumerate(values(run(reduce_in_every_way, case.world_size, case, seed=seed))):
        part = long[number * case.numel : (number + 1) * case.numel]
        at_root = short if number == case.world_size - 1 else case.numbers(number)
        want = {"to the last rank": at_root}
        for name, got in made.items():
            assert torch.equal(got, want.get(name, part if "scattered" in name else short)), (name, number)


@pytest.mark.parametrize("op", ["AVG", "BAND"])
def test_a_reduction_that_is_not_defined_is_refused(op: str) -> None:
    """Integers have no average and floats no bits: every rank raises, and says so."""
    outcomes = run(reduce_in_every_way, 2, Reduce(2, 3, op, "int32" if op == "AVG" else "float32"))
    assert fates(outcomes)[0] == fates(outcomes)[1] == "raised"
    assert "AVG needs floating-point" in outcomes[0].error or "bitwise_and" in outcomes[0].error


def part(source: int, target: int) -> Tensor:
    """What rank ``source`` has for rank ``target``: as many elements as both their numbers and one."""
    return torch.full((source + target + 1,), 10.0 * source + target)


def move_in_every_way(rank: Rank) -> dict[str, Any]:
    """Every collective that moves tensors, with sizes that differ from rank to rank where that is allowed."""
    me, size = rank.number, rank.size
    mine = torch.tensor([me, me + 0.5])
    made: dict[str, Any] = {"broadcast": torch.full((2,), float(me)), "scatter": torch.empty(2)}
    made["all_gather"] = [torch.empty(n + 1) for n in range(size)]
    made["all_gather_single"] = torch.empty(2 * size)
    made["gather"] = [torch.empty(2) for _ in range(size)] if me == 1 else None
    made["all_to_all"] = [torch.empty_like(part(n, me)) for n in range(size)]
    sizes = [[part(n, me).numel() for n in range(size)], [part(me, n).numel() for n in range(size)]]
    made["all_to_all_single"] = torch.empty(sum(sizes[0]))
    dist.broadcast(made["broadcast"], size - 1)
    dist.all_gather(made["all_gather"], torch.full((me + 1,), float(me)))
    all_gather(made["all_gather_single"], mine)
    dist.gather(mine, made["gather"], dst=1)
    dist.scatter(made["scatter"], [torch.full((2,), n + 7.0) for n in range(size)] if me == 0 else None)
    dist.all_to_all(made["all_to_all"], [part(me, n) for n in range(size)])
    dist.all_to_all_single(made["all_to_all_single"], torch.cat([part(me, n) for n in range(size)]), *sizes)
    return made


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_movement_brings_what_was_sent(size: int) -> None:
    """Broadcast, gathers, scatter and exchanges, also of uneven parts, put everything in its place."""
    for me, made in enumerate(values(run(move_in_every_way, size, seed=size))):
        assert made["broadcast"].tolist() == [size - 1.0] * 2
        assert [t.tolist() for t in made["all_gather"]] == [[float(n)] * (n + 1) for n in range(size)]
        assert made["all_gather_single"].tolist() == [x for n in range(size) for x in (n, n + 0.5)]
        assert made["gather"] is None or [t.tolist() for t in made["gather"]] == [[n, n + 0.5] for n in range(size)]
        assert made["scatter"].tolist() == [me + 7.0] * 2
        assert all(got.equal(part(n, me)) for n, got in enumerate(made["all_to_all"]))
        assert made["all_to_all_single"].equal(torch.cat([part(n, me) for n in range(size)]))


def send_around(rank: Rank) -> list[float]:
    """Send to the next rank and receive from the one before: one by one, with tags out of order, and in a batch."""
    after, before = (rank.number + 1) % rank.size, (rank.number - 1) % rank.size
    first, second, third = torch.empty(1), torch.empty(1), torch.empty(1)
    works = [dist.isend(torch.tensor([rank.number + tag / 10]), after, tag=tag) for tag in (1, 2)]
    dist.recv(second, before, tag=2)
    dist.recv(first, before, tag=1)
    batch = [dist.P2POp(dist.irecv, third, before), dist.P2POp(dist.isend, torch.tensor([rank.number * 1.0]), after)]
    for work in [*works, *dist.batch_isend_irecv(batch)]:
        work.wait()
    return [float(first), float(second), float(third)]


@pytest.mark.parametrize("seed", range(3))
def test_messages_go_from_rank_to_rank_by_tag(seed: int) -> None:
    """A message reaches the receive of its sender and tag, whatever the order they are asked for in."""
    assert values(run(send_around, 3, seed=seed)) == [
        pytest.approx([before + 0.1, before + 0.2, before]) for before in (2, 0, 1)
    ]


# Collectives that do not fit together.


def reduces_other_sizes(rank: Rank) -> None:
    """Rank 1 brings three elements."""
    dist.all_reduce(torch.ones(3 if rank.number else 2))


def calls_another(rank: Rank) -> None:
    """Rank 1 broadcasts."""
    dist.broadcast(torch.ones(2), 0) if rank.number else dist.all_reduce(torch.ones(2))


def reduces_otherwise(rank: Rank) -> None:
    """Rank 1 takes the largest."""
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank.number else dist.ReduceOp.SUM)


def sends_another_dtype(rank: Rank) -> None:
    """Rank 1 brings integers."""
    dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank.number else torch.float32))


def has_another_root(rank: Rank) -> None:
    """Each rank takes itself for the root."""
    dist.broadcast(torch.ones(2), rank.number)


@pytest.mark.parametrize(
    ("program", "zero", "one"),
    [
        (reduces_other_sizes, "all_reduce(float32[2], SUM)", "all_reduce(float32[3], SUM)"),
        (calls_another, "all_reduce(float32[2], SUM)", "broadcast(float32[2], root=0)"),
        (reduces_otherwise, "all_reduce(float32[2], SUM)", "all_reduce(float32[2], MAX)"),
        (sends_another_dtype, "all_reduce(float32[2], SUM)", "all_reduce(int32[2], SUM)"),
        (has_another_root, "broadcast(float32[2], root=0)", "broadcast(float32[2], root=1)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calls_that_disagree_are_told_with_who_called_what(program: Any, zero: str, one: str) -> None:
    """Another collective, shape, dtype, operation or root is a mismatch on every rank, which names all calls."""
    outcomes = run(program, 2)
    assert fates(outcomes) == ["mismatched"] * 2
    for outcome in outcomes:
        assert f"rank 0 called {zero}" in outcome.error
        assert f"rank 1 called {one}" in outcome.error


def never_waits(rank: Rank) -> str:
    """Rank 0 posts what rank 1 never joins, and does not wait for it."""
    if rank.number == 0:
        dist.all_reduce(torch.ones(5), async_op=True)
    return "done"


def test_a_collective_that_is_never_joined_is_a_mismatch() -> None:
    """Though nobody waited for it, a collective that its peers never joined fails the rank that posted it."""
    outcomes = run(never_waits, 2)
    assert outcomes[0].fate is Fate.MISMATCHED
    assert "ended with a collective that its peers never joined: all_reduce(float32[5], SUM)" in outcomes[0].error
    assert "not yet joined by rank 1" in outcomes[0].error
