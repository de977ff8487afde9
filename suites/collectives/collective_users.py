"""What tools above a backend ask of it: barriers, rings, objects as checkpoints send them, and a DTensor's moves.

A DTensor of rows [0 1 2] whose parts lie on two ranks as [0 1] and [2] is whole again on both as [0 1 2]; the sum of
parts [1 2] and [3 4] is [4 6] on both, or [4] on one and [6] on the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from harness.data.case import Case
from harness.data.comparison import Allowance
from harness.worlds.rank import Rank
from suites.collectives.collective_cases import Collective, CollectiveCase
from suites.collectives.collective_strategies import SMALL, edges, groups_of, overlapping
from suites.kit import tolerance
from suites.kit.cases import draw, mixed
from suites.kit.strategies import world_sizes
from suites.oracle.layout import shard

# Barriers.


@st.composite
def barrier_cases(draw: st.DrawFn) -> CollectiveCase:
    """Some barriers of all ranks, of some, or of groups that share ranks."""
    world_size = draw(world_sizes(2))
    all_ranks = st.just((tuple(range(world_size)),))
    groups = draw(st.one_of(all_ranks, groups_of(world_size), overlapping(world_size)))
    return CollectiveCase(world_size, (Collective("barrier", 0),) * draw(st.integers(1, 4)), groups)


def at_barriers(rank: Rank, case: CollectiveCase, directory: str) -> list[list[str]]:
    """At each barrier: leave a mark, wait for the others, and list the marks that are there. Each time another is late.

    At every other barrier the rank asks first, and waits then.
    """
    groups = [rank.group(ranks, copy) for copy, ranks in enumerate(case.groups)]
    found: list[list[str]] = []
    for turn in range(len(case.calls)):
        members = case.members(turn)
        if rank.number not in members:
            found.append([])
            continue
        if rank.number == members[turn % len(members)]:
            _be_late(Path(directory), turn)
        Path(directory, f"{turn}-{rank.number}").touch()
        work = dist.barrier(groups[turn % len(groups)], async_op=turn % 2 == 1)
        if work is not None:
            work.wait()
        found.append(sorted(mark.name for mark in Path(directory).glob(f"{turn}-*")))
        Path(directory, f"left {turn}-{rank.number}").touch()
    return found


def _be_late(directory: Path, turn: int) -> None:
    """Work for some ten milliseconds, unless another leaves the barrier sooner: then it does not hold."""
    square = torch.ones(192, 192)
    for _ in range(60):
        if any(directory.glob(f"left {turn}-*")):
            return
        square = square @ square / 192


def wanted_marks(case: CollectiveCase, rank: int) -> list[list[str]]:
    """The marks of all ranks that meet."""
    all_ranks = [case.members(turn) for turn in range(len(case.calls))]
    return [[f"{turn}-{each}" for each in ranks] if rank in ranks else [] for turn, ranks in enumerate(all_ranks)]


# Rings.


@dataclass(frozen=True)
class RingCase(Case):
    """Each member of ``ranks`` has ``numel`` numbers for the next one, and other ones for the one before."""

    world_size: int
    ranks: tuple[int, ...]
    numel: int
    dtype: str = "float32"
    seed: int = 0

    def sent(self, member: int, step: int) -> Tensor:
        """What a member has for the one that comes ``step`` after it."""
        return draw((self.numel,), mixed(self.seed, member, step + 1), True).to(getattr(torch, self.dtype))


@st.composite
def ring_cases(draw: st.DrawFn) -> RingCase:
    """At least two of the ranks, with small parts or large ones."""
    world_size = draw(world_sizes(2))
    ranks = draw(st.sets(st.integers(0, world_size - 1), min_size=2).map(sorted).map(tuple))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int64"]))
    return RingCase(world_size, ranks, draw(SMALL | edges()), dtype, draw(st.integers(0, 2**16)))


def around(rank: Rank, case: RingCase) -> list[Tensor]:
    """Send to both neighbours and receive from both, all at once, as rings of context parallelism do."""
    group = rank.group(case.ranks)
    if group is None:
        return []
    member, size = case.ranks.index(rank.number), len(case.ranks)
    after, before = case.ranks[(member + 1) % size], case.ranks[member - 1]
    sent = [case.sent(member, step).to(rank.device) for step in (1, -1)]
    got = [torch.empty_like(each) for each in sent]
    sends = [dist.P2POp(dist.isend, part, peer, group) for part, peer in zip(sent, (after, before), strict=True)]
    receives = [dist.P2POp(dist.irecv, part, peer, group) for part, peer in zip(got, (before, after), strict=True)]
    for work in dist.batch_isend_irecv([*sends, *receives]):
        work.wait()
    return [each.cpu() for each in got]


def wanted_around(case: RingCase, rank: int) -> list[Tensor]:
    """What each has for this one: the one before, and the one after."""
    if rank not in case.ranks:
        return []
    member, size = case.ranks.index(rank), len(case.ranks)
    return [case.sent((member - step) % size, step) for step in (1, -1)]


# Objects.


@dataclass(frozen=True)
class ObjectCase(Case):
    """Each member of ``ranks`` has an object of its own size; ``root`` is a place among them."""

    world_size: int
    ranks: tuple[int, ...]
    root: int
    lengths: tuple[int, ...]
    seed: int = 0

    def thing(self, member: int) -> Any:
        """What a member has: sometimes nothing, else something of a length that others do not have."""
        length = self.lengths[member]
        if not length:
            return None
        numbers = [(self.seed + 7 * member + 3 * place) % 251 for place in range(length)]
        return {"member": member, "numbers": numbers, "name": "é" * (member + 1), "nested": [{"x": 0.5 * member}]}


@st.composite
def object_cases(draw: st.DrawFn) -> ObjectCase:
    """Some of the ranks, with objects from nothing to some tens of kilobytes."""
    world_size = draw(world_sizes(2))
    ranks = tuple(sorted(draw(st.sets(st.integers(0, world_size - 1), min_size=1))))
    lengths = st.one_of(st.integers(0, 20), st.sampled_from([300, 5000]))
    return ObjectCase(
        world_size,
        ranks,
        draw(st.integers(0, len(ranks) - 1)),
        tuple(draw(lengths) for _ in ranks),
        draw(st.integers(0, 250)),
    )


def objects(rank: Rank, case: ObjectCase) -> dict[str, Any]:
    """Objects sent in every way that a checkpoint sends them."""
    group = rank.group(case.ranks)
    if group is None:
        return {}
    size, member, root = len(case.ranks), case.ranks.index(rank.number), case.ranks[case.root]
    at_root = rank.number == root
    all_ranks: list[Any] = [None] * size
    dist.all_gather_object(all_ranks, case.thing(member), group=group)
    gathered: list[Any] | None = [None] * size if at_root else None
    dist.gather_object(case.thing(member), gathered, dst=root, group=group)
    sent = [case.thing(case.root), member if at_root else None] if at_root else [None, None]
    dist.broadcast_object_list(sent, src=root, group=group)
    own: list[Any] = [None]
    dist.scatter_object_list(own, [case.thing(each) for each in range(size)] if at_root else None, root, group=group)
    return {"all_gather": all_ranks, "gather": gathered, "broadcast": sent, "scatter": own}


def wanted_objects(case: ObjectCase, rank: int) -> dict[str, Any]:
    """What each rank must have of them."""
    if rank not in case.ranks:
        return {}
    all_ranks = [case.thing(member) for member in range(len(case.ranks))]
    member = case.ranks.index(rank)
    return {
        "all_gather": all_ranks,
        "gather": all_ranks if member == case.root else None,
        "broadcast": [all_ranks[case.root], case.root],
        "scatter": [all_ranks[member]],
    }


# DTensors.


@dataclass(frozen=True)
class MoveCase(Case):
    """A tensor of whole numbers, spread over all ranks of a mesh of one axis."""

    world_size: int
    shape: tuple[int, int]
    dtype: str = "float32"
    seed: int = 0

    def values(self, rank: int) -> Tensor:
        """What one rank has; the tensor that is spread is that of rank 0."""
        return draw(self.shape, mixed(self.seed, rank), True).to(getattr(torch, self.dtype))


def move_cases() -> st.SearchStrategy[MoveCase]:
    """Rows and columns that ranks divide, do not divide, or cannot all have one of."""
    dims = st.tuples(st.integers(1, 9), st.integers(1, 9))
    dtypes = st.sampled_from(["float32", "bfloat16", "float64"])
    return st.builds(MoveCase, world_sizes(2), dims, dtypes, st.integers(0, 2**16))


def moves(rank: Rank, case: MoveCase) -> dict[str, Tensor]:
    """The local part after each move that FSDP, clipping and state dicts make."""
    mesh, own = rank.mesh(), case.values(rank.number).to(rank.device)
    rows = distribute_tensor(own, mesh, [Shard(0)])
    sums, means, most = (DTensor.from_local(own, mesh, [Partial(how)]) for how in ("sum", "avg", "max"))
    moved = {
        "rank 0's rows": rows.to_local(),
        "rank 0's columns": distribute_tensor(own, mesh, [Shard(1)]).to_local(),
        "rank 0's": distribute_tensor(own.clone(), mesh, [Replicate()]).to_local(),
        "rows made whole": rows.full_tensor(),
        "rows made columns": rows.redistribute(placements=[Shard(1)]).to_local(),
        "sums": sums.full_tensor(),
        "rows of sums": sums.redistribute(placements=[Shard(0)]).to_local(),
        "columns of means": means.redistribute(placements=[Shard(1)]).to_local(),
        "largest": most.full_tensor(),
    }
    return {name: tensor.cpu() for name, tensor in moved.items()}


def wanted_moves(case: MoveCase, rank: int) -> dict[str, Tensor]:
    """The same by plain arithmetic; means of three ranks are rounded, and given in float64."""
    size, first = case.world_size, case.values(0)
    stacked = torch.stack([case.values(each) for each in range(size)])
    sums = stacked.sum(0)
    return {
        "rank 0's rows": shard(first, size, rank),
        "rank 0's columns": shard(first, size, rank, 1),
        "rank 0's": first,
        "rows made whole": first,
        "rows made columns": shard(first, size, rank, 1),
        "sums": sums,
        "rows of sums": shard(sums, size, rank),
        "columns of means": shard(sums.double() / size, size, rank, 1),
        "largest": stacked.amax(0),
    }


def rounded_means(case: MoveCase) -> Allowance:
    """What means of numbers of at most 2 may differ; all else is exact."""
    unit = torch.finfo(getattr(torch, case.dtype)).eps / 2
    rounded = tolerance.reduction(case.world_size, unit, torch.tensor(2.0))
    return lambda path, want: rounded(path, want) if "means" in path else 0.0
