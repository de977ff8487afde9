"""Probes of groups and of what tools ask of them: axes of a mesh, second groups, other forms of calls, a step.

Four ranks as a mesh of 2 × 2: 0 and 1 share a row, 0 and 2 a column, and in the column of 1 and 3 rank 3 is second.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.doctor.probes.answer import NotTried, Wrong, last_line
from harness.doctor.probes.collectives import Ask
from harness.doctor.probes.exact import holds, numbers, reduced, same
from harness.worlds.rank import Rank

_NUMEL = 12


def started(rank: Rank) -> str:
    """Row 21b."""
    group = _everybody()
    holds(group.size() == rank.size, f"the group says that it has {group.size()} ranks, not {rank.size}")
    holds(group.rank() == rank.number, f"rank {rank.number} of the group says that it is {group.rank()}")
    holds(bool(group.group_name), "the group has no name")
    kind = "torch's own, backend in C++" if type(group) is dist.ProcessGroup else f"in Python, {type(group).__name__}"
    return f"{rank.size} × {rank.device.type}, {kind}"


def in_python(rank: Rank) -> str:
    """Row 15b."""
    group = _everybody()
    if type(group) is dist.ProcessGroup:
        raise NotTried("the process group is torch's own, on a backend in C++")
    lacking = [name for name in _new_names() if not _overrides(group, name)]
    failed = [f"{name}: {words}" for name, call in _calls(rank).items() if (words := _raised(call))]
    if failed:
        raise NotImplementedError(f"{'; '.join(failed)} (not overridden: {', '.join(lacking) or 'nothing'})")
    return type(group).__name__


def _new_names() -> list[str]:
    names = ["all_gather_single", "reduce_scatter_single", "all_gather_single_coalesced"]
    names += ["reduce_scatter_single_coalesced", "allreduce", "broadcast", "barrier", "group_name", "size", "rank"]
    return [name for name in names if hasattr(dist.ProcessGroup, name)]


def _overrides(group: dist.ProcessGroup, name: str) -> bool:
    return getattr(type(group), name) is not getattr(dist.ProcessGroup, name)


def _calls(rank: Rank) -> dict[str, Callable[[], object]]:
    small, large = torch.zeros(1, device=rank.device), torch.zeros(rank.size, device=rank.device)
    return {
        "all-gather": lambda: all_gather(large, small),
        "reduce-scatter": lambda: reduce_scatter(small, large),
        "all-reduce": lambda: dist.all_reduce(small),
        "broadcast": lambda: dist.broadcast(small, 0),
        "barrier": lambda: dist.barrier(),
    }


def _raised(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return last_line(error)
    return ""


def axes(rank: Rank, shape: tuple[int, int]) -> str:
    """Row 22a: both axes of a mesh, one after the other and at once, then all ranks again."""
    mesh = rank.mesh(shape, ("doctor's rows", "doctor's columns"))
    groups = [mesh.get_group(axis) for axis in range(2)]
    for axis, group in enumerate(groups):
        members = dist.get_process_group_ranks(group)
        holds(rank.number in members, f"axis {axis} of the mesh has ranks {members}, without rank {rank.number}")
        _right_in(rank, group, members, f"on axis {axis} of {shape[0]} × {shape[1]}")
    _right_at_once(rank, groups)
    _right_in(rank, _everybody(), list(range(rank.size)), "of all ranks, after the axes")
    return ""


def _right_in(rank: Rank, group: Any, members: list[int], where: str) -> None:
    """Gather, sum and broadcast: each group has other numbers, by its members."""
    size, place = len(members), members.index(rank.number)
    turn = sum(members)
    own = numbers(place, size, _NUMEL * size, torch.float32, turn).to(rank.device)
    out = torch.zeros(_NUMEL * size, device=rank.device)
    all_gather(out, own[:_NUMEL].clone(), group=group)
    each = [numbers(other, size, _NUMEL, torch.float32, turn) for other in range(size)]
    same(f"all-gather {where}", out, torch.cat(each))
    part, whole = torch.zeros(_NUMEL, device=rank.device), own.clone()
    total = reduced("SUM", size, _NUMEL * size, torch.float32, turn)
    reduce_scatter(part, own, group=group)
    same(f"reduce-scatter {where}", part, total.chunk(size)[place])
    dist.all_reduce(whole, group=group)
    same(f"all-reduce {where}", whole, total)
    tensor = own[:_NUMEL].clone()
    dist.broadcast(tensor, members[-1], group=group)
    same(f"broadcast {where}", tensor, each[-1])


def _right_at_once(rank: Rank, groups: list[Any]) -> None:
    flying = []
    for group in groups:
        members = dist.get_process_group_ranks(group)
        size, turn = len(members), sum(members)
        tensor = numbers(members.index(rank.number), size, _NUMEL, torch.float32, turn).to(rank.device)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        flying.append((work, tensor, reduced("SUM", size, _NUMEL, torch.float32, turn)))
    for work, tensor, want in reversed(flying):
        work.wait()
        same("all-reduce in flight in the groups of both axes", tensor, want)


def second_group(rank: Rank) -> str:
    """Row 22b: all-gathers on the first group beside reduce-scatters on the second, as FSDP runs them."""
    everybody = list(range(rank.size))
    second = dist.new_group(everybody, use_local_synchronization=True)
    _right_in(rank, second, everybody, "in a second group")
    _right_at_once(rank, [_everybody(), second])
    alone = dist.new_group([rank.number], use_local_synchronization=True)
    _right_in(rank, alone, [rank.number], "in a group of one rank")
    return ""


def splitting(rank: Rank) -> str:
    """Row 22c."""
    if not getattr(_backend(rank), "supports_splitting", False):
        raise NotTried("optional, and the backend says that it does not split")
    if _everybody().bound_device_id is None:
        raise NotTried("the backend says that it splits; no device is bound in these worlds, so torch does not ask it")
    ranks = list(range(rank.size))
    group: Any = dist.split_group(split_ranks=[ranks])
    _right_in(rank, group, ranks, "in a group by split_group")
    return ""


def coalesced(rank: Rank, name: str) -> str:
    """Row 23: two tensors in one call."""
    functional: Any = importlib.import_module("torch.distributed._functional_collectives")
    group = _everybody()
    sizes = (3, 8)
    given = [numbers(rank.number, rank.size, n * rank.size, torch.float32).to(rank.device) for n in sizes]
    if name == "all-gather":
        got = functional.all_gather_into_tensor_coalesced(given, group)
        want = [torch.cat([_of(rank, other, n) for other in range(rank.size)]) for n in sizes]
    elif name == "reduce-scatter":
        got = functional.reduce_scatter_tensor_coalesced(given, "sum", [0, 0], group)
        want = [_total(rank, n).chunk(rank.size)[rank.number] for n in sizes]
    else:
        got = functional.all_reduce_coalesced(given, "sum", group)
        want = [_total(rank, n) for n in sizes]
    for place, (one, right) in enumerate(zip(got, want, strict=True)):
        same(f"tensor {place} of a coalesced {name}", functional.wait_tensor(one), right)
    return ""


def _of(rank: Rank, other: int, numel: int) -> Tensor:
    return numbers(other, rank.size, numel * rank.size, torch.float32)


def _total(rank: Rank, numel: int) -> Tensor:
    return reduced("SUM", rank.size, numel * rank.size, torch.float32)


def functional_forms(rank: Rank) -> str:
    """Row 24."""
    functional: Any = importlib.import_module("torch.distributed._functional_collectives")
    group, own = _everybody(), _of(rank, rank.number, 3).to(rank.device)
    whole = functional.wait_tensor(functional.all_gather_tensor(own, 0, group))
    same("functional all-gather", whole, torch.cat([_of(rank, other, 3) for other in range(rank.size)]))
    part = functional.wait_tensor(functional.reduce_scatter_tensor(own, "sum", 0, group))
    same("functional reduce-scatter", part, _total(rank, 3).chunk(rank.size)[rank.number])
    same("functional all-reduce", functional.wait_tensor(functional.all_reduce(own, "sum", group)), _total(rank, 3))
    return ""


def dtensor(rank: Rank) -> str:
    """Row 24."""
    tensors: Any = importlib.import_module("torch.distributed.tensor")
    whole = torch.arange(3 * rank.size + 1, dtype=torch.float32)  # the last rank has less than the others
    spread = tensors.distribute_tensor(whole.to(rank.device), rank.mesh(), [tensors.Shard(0)])
    same("a DTensor that was spread and made whole", spread.full_tensor(), whole)
    same("the sum of a DTensor", spread.sum().full_tensor(), whole.sum())
    return ""


def own_memory(rank: Rank) -> str:
    """Row 28."""
    backend = _backend(rank)
    says = getattr(backend, "supports_tensor_alloc", False)
    if not (says(rank.device) if callable(says) else says):
        raise NotTried("optional, and the backend says that it has none")
    tensor = backend.allocate_tensor(_NUMEL, dtype=torch.float32, device=rank.device)
    tensor.copy_(numbers(rank.number, rank.size, _NUMEL, torch.float32))
    dist.all_reduce(tensor)
    same("all-reduce in memory of the group", tensor, reduced("SUM", rank.size, _NUMEL, torch.float32))
    return ""


def one_step(rank: Rank) -> str:
    """Row 30: y = W₂(W₁x), where ranks have other x; the gradients are the averages of all ranks'."""
    shard = rank.implementation.fully_shard
    if shard is None:
        raise NotTried(f"{rank.implementation.name} gives no fully_shard")
    width = 4 * rank.size
    net, whole = _net(width).to(rank.device), _net(width)
    for module in (*net, net):
        shard(module, mesh=rank.mesh())
    net(_input(rank.number, rank.size, width).to(rank.device)).sum().backward()
    for other in range(rank.size):
        (whole(_input(other, rank.size, width)).sum() / rank.size).backward()
    for (name, got), (_, want) in zip(net.named_parameters(), whole.named_parameters(), strict=True):
        if got.grad is None:
            raise Wrong(f"parameter {name} has no gradient")  # all ranks have done their part by now
        assert want.grad is not None
        local = getattr(got.grad, "to_local", lambda it=got.grad: it)()
        same(f"this rank's shard of the gradient of {name}", local, want.grad.chunk(rank.size)[rank.number])
    return rank.implementation.name


def _net(width: int) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False))
    for turn, weight in enumerate(net.parameters()):
        weight.data = _small(0, 1, width * width, turn).view(width, width)
    return net


def _input(rank: int, ranks: int, width: int) -> Tensor:
    return _small(rank, ranks, 2 * width).view(2, width)


def _small(rank: int, ranks: int, numel: int, turn: int = 0) -> Tensor:
    """Numbers whose products are exact in float32."""
    return numbers(rank, ranks, numel, torch.bfloat16, turn).float()


def _everybody() -> Any:
    return dist.distributed_c10d._get_default_group()


def _backend(rank: Rank) -> Any:
    group = _everybody()
    return group._get_backend(rank.device) if type(group) is dist.ProcessGroup else group


#: By how many ranks there are.
MESHES: dict[int, list[tuple[int, int]]] = {1: [(1, 1)], 2: [(1, 2), (2, 1)], 4: [(2, 2)]}
ASKS: dict[str, dict[str, Ask]] = {
    "21b": {"": started},
    "15b": {"": in_python},
    **{
        f"22a:{ranks}": {f"{a} × {b}": partial(axes, shape=(a, b)) for a, b in shapes}
        for ranks, shapes in MESHES.items()
    },
    "22b": {"": second_group},
    "22c": {"": splitting},
    "23": {name: partial(coalesced, name=name) for name in ("all-gather", "reduce-scatter", "all-reduce")},
    "24": {"functions": functional_forms, "DTensor": dtensor},
    "28": {"": own_memory},
    "30": {"": one_step},
}
