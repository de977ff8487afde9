"""The recorder: what ranks issue is noted in order, as the same data in either world, wherever the call comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from harness.collective_trace.recorder import Entry
from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.vendor.load import Subject
from harness.worlds.base import World
from harness.worlds.make import open_world
from harness.worlds.rank import Rank
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO
from tests.worlds.lockstep_runs import values

SIZE = 2
#: Where there are traces: in either kind of world, and where process groups are written in Python.
PLACES = {
    "threads": ("threads", TORCH_ON_GLOO),
    "processes": ("processes", TORCH_ON_GLOO),
    "groups in Python": ("processes", Subject("torch", "tests.mutants.backends.backends:right")),
    "groups on a thread": ("processes", Subject("torch", "tests.conforming.backends:on_another_thread")),
}


@pytest.fixture(scope="module", params=PLACES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two ranks of each kind."""
    kind, subject = PLACES[request.param]
    with open_world(kind, SIZE, subject) as opened:
        yield opened


def traces(world: World, program: Callable[..., list[Entry]], *args: Any) -> list[list[Entry]]:
    """What each rank noted; traces are JSON."""
    found = values(list(world.run(program, *args, deadline=GUARD)))
    assert json.loads(json.dumps(found)) == found
    return found


def amount(numel: int, bytes: int, dtype: str = "float32") -> dict[str, Any]:
    """One side of an entry."""
    return {"numel": numel, "bytes": bytes, "dtype": dtype}


NOTHING = amount(0, 0, "")


def line(op: str, input: Any, output: Any, reduce: str | None = None, is_async: bool | None = False) -> Entry:
    """An entry of both ranks."""
    return {"op": op, "input": input, "output": output, "reduce": reduce, "ranks": [0, 1], "async": is_async}


def single_tensors(rank: Rank) -> list[Entry]:
    """The collectives of one tensor, one of them asynchronous."""
    whole, half = torch.ones(4), torch.ones(2)
    with rank.collectives() as entries:
        all_gather(whole, half)
        reduce_scatter(half, whole, op=dist.ReduceOp.AVG, async_op=True).wait()
        dist.all_reduce(torch.ones(3, dtype=torch.int64), op=dist.ReduceOp.MAX)
        dist.reduce(half, dst=0)
        dist.broadcast(half, src=1)
        dist.all_to_all_single(torch.empty(4), whole)
        dist.barrier()
    dist.all_reduce(half)  # no longer heard
    return entries


def lists_of_tensors(rank: Rank) -> list[Entry]:
    """The collectives of several tensors, and those from or to one rank."""
    half, pair = torch.ones(2), [torch.empty(2), torch.empty(2)]
    with rank.collectives() as entries:
        dist.all_gather(pair, half)
        dist.reduce_scatter(half, pair)
        dist.all_to_all(pair, [torch.ones(2), torch.ones(2)])
        dist.gather(half, pair if rank.number == 0 else None, dst=0)
        dist.scatter(half, pair if rank.number == 1 else None, src=1)
        (dist.send if rank.number == 0 else dist.recv)(half, 1 - rank.number)
    return entries


def functional_collectives(rank: Rank) -> list[Entry]:
    """What DTensors use: by hand, in a redistribution, and in its backward."""
    with rank.collectives() as entries:
        functional.all_reduce(torch.ones(3), "avg", dist.group.WORLD).sum().item()
        spread = distribute_tensor(torch.ones(4, 2), rank.mesh(), [Shard(0)], src_data_rank=None).requires_grad_()
        whole = spread.redistribute(placements=[Replicate()]).to_local(grad_placements=None)
        entries.append({"op": "backward"})
        (whole * (rank.number + 1)).sum().backward()
        spread.detach().sum().full_tensor()
    return entries


class GathersInBackward(torch.autograd.Function):
    """The identity, whose backward averages."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Hand it on."""
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Add up over ranks."""
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def from_backward(rank: Rank) -> list[Entry]:
    """A collective that autograd issues, and a later one."""
    leaf = torch.ones(5, requires_grad=True)
    with rank.collectives() as entries:
        GathersInBackward.apply(leaf).sum().backward()
        dist.barrier()
    return entries


def smaller_groups(rank: Rank) -> list[Entry]:
    """A rank talks to itself, then to all."""
    alone = rank.mesh((2, 1), ("replicate", "shard"))
    with rank.collectives() as entries:
        dist.all_reduce(torch.ones(1), group=alone.get_group("shard"))
        dist.all_reduce(torch.ones(1), group=alone.get_group("replicate"))
    return entries


def two_ledgers(rank: Rank) -> list[list[str]]:
    """One inside the other: both hear what is between."""
    with rank.collectives() as outer:
        dist.barrier()
        with rank.collectives() as inner:
            dist.all_reduce(torch.ones(1))
        dist.barrier()
    return [[each["op"] for each in found] for found in (outer, inner)]


def sharded_training(rank: Rank, shape: tuple[int, ...]) -> list[Entry]:
    """Two layers, each sharded, and the root, over one axis or two; forward and backward."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.ReLU(), nn.Linear(2, 5))
    mesh = rank.mesh(shape, ("replicate", "shard")) if len(shape) > 1 else rank.mesh()
    assert rank.implementation.fully_shard is not None
    for module in (net[0], net[2], net):
        rank.implementation.fully_shard(module, mesh=mesh)
    with rank.collectives() as entries:
        loss = net(torch.ones(1, 4)).sum()
        entries.append({"op": "backward"})
        loss.backward()
    return entries


def test_collectives_of_single_tensors_are_noted(world: World) -> None:
    """Op, sizes, dtype, reduction, ranks and whether the call was asynchronous; nothing after the block."""
    whole, half, numbers = amount(4, 16), amount(2, 8), amount(3, 24, "int64")
    want = [
        line("all_gather", half, whole),
        line("reduce_scatter", whole, half, "AVG", is_async=True),
        line("all_reduce", numbers, numbers, "MAX"),
        line("reduce", half, half, "SUM"),
        line("broadcast", half, half),
        line("all_to_all", whole, whole),
        line("barrier", NOTHING, NOTHING),
    ]
    assert traces(world, single_tensors) == [want, want]


def test_collectives_of_lists_are_noted_by_their_sums(world: World) -> None:
    """Lists count as one collective of all their elements; who is not the root has nothing on one side."""
    whole, half = amount(4, 16), amount(2, 8)
    first, second = traces(world, lists_of_tensors)
    both = [
        line("all_gather", half, whole),
        line("reduce_scatter", whole, half, "SUM"),
        line("all_to_all", whole, whole),
    ]
    assert first == [
        *both,
        line("gather", half, whole),
        line("scatter", NOTHING, half),
        line("send", half, NOTHING, None, None),
    ]
    assert second == [
        *both,
        line("gather", half, NOTHING),
        line("scatter", whole, half),
        line("recv", NOTHING, half, None, None),
    ]


def test_functional_collectives_are_noted_also_from_inside_dtensors(world: World) -> None:
    """A redistribution gathers; the sum of a sharded tensor is reduced: both are heard."""
    three, one = amount(3, 12), amount(1, 4)
    want = [
        line("all_reduce", three, three, "AVG", is_async=True),
        line("all_gather", amount(4, 16), amount(8, 32), is_async=True),
        {"op": "backward"},
        line("all_reduce", one, one, "SUM", is_async=True),
    ]
    assert traces(world, functional_collectives) == [want, want]


def test_collectives_of_backward_are_noted_in_order(world: World) -> None:
    """What autograd issues comes before what is called after it."""
    want = [line("all_reduce", amount(5, 20), amount(5, 20), "SUM"), line("barrier", NOTHING, NOTHING)]
    assert traces(world, from_backward) == [want, want]


def test_the_ranks_are_those_of_the_group_that_was_called(world: World) -> None:
    """By their numbers in the world, not in the group."""
    found = [[each["ranks"] for each in entries] for entries in traces(world, smaller_groups)]
    assert found == [[[0], [0, 1]], [[1], [0, 1]]]


def test_ledgers_may_lie_in_each_other(world: World) -> None:
    """The outer one hears everything, the inner one what is inside."""
    assert (
        values(list(world.run(two_ledgers, deadline=GUARD)))
        == [[["barrier", "all_reduce", "barrier"], ["all_reduce"]]] * 2
    )


def test_sharded_training_is_noted_alike_in_both_worlds() -> None:
    """Gathers and reductions of sharded layers are entry by entry the same among threads and among processes."""
    found = []
    for kind in ("threads", "processes"):
        with open_world(kind, SIZE, TORCH_ON_GLOO) as world:
            found.append([traces(world, sharded_training, shape) for shape in ((SIZE,), (1, SIZE), (SIZE, 1))])
    threads, processes = found
    assert threads == processes
    assert [each["op"] for each in threads[0][0]].count("reduce_scatter") == 2
    assert [each["op"] for each in threads[2][0]].count("all_reduce") == 2


def waits(rank: Rank) -> list[Entry]:
    """Two collectives that are waited for later, in the other order, one at once, and one never."""
    whole, half = torch.ones(4), torch.ones(2)
    with rank.collectives(waits=True) as entries:
        first = all_gather(whole, half, async_op=True)
        second = dist.all_reduce(half.clone(), async_op=True)
        entries.append({"op": "computed"})
        second.wait()
        first.wait()
        first.wait()
        dist.all_reduce(half)
        dist.all_reduce(half, async_op=True)
        functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD).sum().item()
    late = dist.all_reduce(half, async_op=True)
    late.wait()
    return [each if each["op"] in ("wait", "computed") else {"op": each["op"]} for each in entries]


def test_waits_are_noted_where_they_are_asked_for(world: World) -> None:
    """By the place of what was waited for, once, in order; what is never waited for has none."""
    want = [
        {"op": "all_gather"},
        {"op": "all_reduce"},
        {"op": "computed"},
        {"op": "wait", "of": 1},
        {"op": "wait", "of": 0},
        {"op": "all_reduce"},
        {"op": "wait", "of": 5},
        {"op": "all_reduce"},
        {"op": "all_reduce"},
        {"op": "wait", "of": 8},
    ]
    assert traces(world, waits) == [want, want]
