"""Corners of the reference that no requirement of the suites reaches: what it refuses, and what needs odd means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from harness.worlds.rank import Rank
from reference_models import fsdp
from reference_models.fsdp.mixed_precision import tensors_in
from reference_models.fsdp.modules.state import own_state
from reference_models.subject import implementation as reference
from tests.worlds.lockstep_runs import run, values


def on_ranks(size: int, program: Any, *args: Any) -> list[Any]:
    """What a program returns on each rank."""
    return values(run(program, size, *args, subject=reference))


def sharded(rank: Rank, net: nn.Module, **options: Any) -> Any:
    """``net`` sharded over all ranks."""
    return fsdp.fully_shard(net, mesh=rank.mesh((rank.size,), ("shard",)), **options)


def linear(rows: int = 4) -> nn.Linear:
    """A layer with weights 0, 1, 2…, the same on every rank."""
    layer = nn.Linear(2, rows, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(2.0 * rows).view(rows, 2))
    return layer


def refusal(call: Any, *args: Any, **options: Any) -> tuple[list[str], str]:
    """The classes and the message of what a call raises."""
    try:
        call(*args, **options)
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)
    return [], ""


def refusals(rank: Rank) -> dict[str, tuple[list[str], str]]:
    """Calls that cannot be meant, on four ranks."""
    line, square = rank.mesh((4,), ("shard",)), rank.mesh((2, 2), ("a", "b"))
    cube = rank.mesh((2, 2, 1), ("x", "y", "z"))
    whole = nn.Linear(2, 4, bias=False)
    whole.weight = nn.Parameter(distribute_tensor(whole.weight.detach(), cube, [Replicate()] * 3))
    plain, columns, rows = (fsdp.fully_shard(linear(), mesh=line) for _ in range(3))
    plain.weight = nn.Parameter(torch.zeros(4, 2))
    columns.load_state_dict({"weight": distribute_tensor(torch.zeros(4, 2), line, [Shard(1)])}, assign=True)
    rows.weight = nn.Parameter(distribute_tensor(torch.zeros(8, 2), line, [Shard(0)]))
    replicated: Any = fsdp.replicate(linear(), mesh=line)
    return {
        "empty": refusal(fsdp.fully_shard, [], mesh=line),
        "strategy": refusal(fsdp.shard_by_policy, linear(), mesh=square),
        "inner last": inner_last(line),
        "inner last, of named axes": inner_last(square, square["b"]),
        "three axes": refusal(fsdp.fully_shard, whole, mesh=rank.mesh((4, 1), ("d", "t"))["d"]),
        "plain": refusal(plain, torch.ones(1, 2)),
        "columns": refusal(columns, torch.ones(1, 2)),
        "rows": refusal(rows, torch.ones(1, 2)),
        "a type by its name": refusal(fsdp.set_state_dict_type, rows, "full"),
        "no shards": refusal(replicated.set_reshard_after_forward, True),
        "no shards to gather": refusal(replicated.set_allocate_memory_from_process_group_for_comm, True),
        "one axis twice": refusal(
            fsdp.fully_shard, whole, mesh=cube, dp_mesh_dims=fsdp.DataParallelMeshDims(shard="x", replicate=("y", "x"))
        ),
        "custom": refusal(_custom(line).set_allocate_memory_from_process_group_for_comm, True),
    }


def inner_last(outer: Any, inner: Any = None) -> tuple[list[str], str]:
    """What comes of sharding a net over one mesh, and then what is in it."""
    net = fsdp.fully_shard(nn.Sequential(linear()), mesh=outer)
    return refusal(fsdp.fully_shard, net[0], mesh=inner or outer)


def _custom(mesh: Any) -> Any:
    net: Any = fsdp.fully_shard(linear(), mesh=mesh)
    net.set_custom_all_gather(object())
    return net


def test_what_cannot_be_meant_is_refused_by_torchs_class_and_a_sentence() -> None:
    """Each refusal is a ValueError or NotImplementedError, torch's class as well, and says what was expected."""
    wanted = {
        "empty": ("IndexError", "expects a module or a list of modules"),
        "strategy": ("ValueError", "FULL_SHARD expects a mesh of 1 axes"),
        "inner last": ("ValueError", "shard inner modules before outer ones"),
        "inner last, of named axes": ("ValueError", "shard inner modules before outer ones"),
        "three axes": ("NotImplementedError", "on at most two axes besides data"),
        "plain": ("ValueError", "shape and placements (torch.Size([4, 2]), (Shard(dim=0),)), got a plain tensor"),
        "columns": ("ValueError", "(Shard(dim=0),)), got (torch.Size([4, 2]), (Shard(dim=1),))"),
        "rows": ("ValueError", "(Shard(dim=0),)), got (torch.Size([8, 2]), (Shard(dim=0),))"),
        "a type by its name": ("ValueError", "expected a StateDictType, such as StateDictType.FULL; got 'full'"),
        "no shards": ("AssertionError", "Expected mesh_info to be FSDPMeshInfo"),
        "no shards to gather": ("AssertionError", "Expected mesh_info to be FSDPMeshInfo"),
        "one axis twice": ("ValueError", "to name an axis once, got 'x' twice"),
        "custom": ("AssertionError", "when all gather comm is custom"),
    }
    for got in on_ranks(4, refusals):
        for name, (kind, words) in wanted.items():
            kinds, message = got[name]
            assert kind in kinds, (name, kinds, message)
            assert words in message, (name, message)


def test_a_value_that_contains_itself_is_refused() -> None:
    """A list in itself ends in a sentence, not in Python's own recursion limit."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RuntimeError, match="exceeded max depth"):
        tensors_in(endless)


def partly_then_sharded(rank: Rank) -> list[Any]:
    """Placements after a forward with int resharding, and after resharding by hand."""
    net = sharded(rank, linear(), reshard_after_forward=2)
    root = sharded(rank, nn.Sequential(net))
    root(torch.ones(1, 2))
    first = str(net.weight.placements)
    net.reshard()
    return [first, str(net.weight.placements)]


def test_what_is_kept_in_part_may_be_resharded_by_hand() -> None:
    """After a forward that keeps shards over two ranks, ``reshard`` brings back the shards over four."""
    for first, second in on_ranks(4, partly_then_sharded):
        assert (first, second) == ("(Replicate(), Shard(dim=0))", "(Shard(dim=0),)")


def several_names_beside_tp(rank: Rank) -> list[Any]:
    """The layout of a weight over a shard axis of two names, beside tensor parallelism."""
    mesh = rank.mesh((2, 1, 2), ("a", "b", "tp"))
    net = linear()
    net.weight = nn.Parameter(distribute_tensor(net.weight.detach(), mesh, [Replicate(), Replicate(), Shard(1)]))
    fsdp.fully_shard(net, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(shard=("a", "b")))
    assert isinstance(net.weight, DTensor)
    return [str(net.weight.placements), net.weight.device_mesh.mesh_dim_names, net.weight.full_tensor().detach()]


def test_several_names_make_one_axis_beside_tensor_parallelism() -> None:
    """The two names become one axis, in the place of the first, and other axes stay."""
    for placements, names, whole in on_ranks(4, several_names_beside_tp):
        assert (placements, names) == ("(Shard(dim=0), Shard(dim=1))", ("a_b", "tp"))
        assert torch.equal(whole, linear().weight)


def loads_whole(rank: Rank) -> list[Any]:
    """A whole state dict loaded into, and saved from, a module of type FULL."""
    net = sharded(rank, nn.Sequential(linear()))
    fsdp.set_state_dict_type(net, fsdp.StateDictType.FULL)
    net.load_state_dict({"0.weight": torch.full((4, 2), 7.0)})
    saved = net.state_dict()["0.weight"]
    fsdp.set_state_dict_type(net, fsdp.StateDictType.SHARDED)
    return [saved, type(net.state_dict()["0.weight"]).__name__, net(torch.ones(1, 2)).detach()]


def test_state_dicts_of_type_full_are_loaded_whole() -> None:
    """A module of type FULL takes and gives plain tensors, and DTensors again once it is SHARDED."""
    for saved, kind, output in on_ranks(2, loads_whole):
        assert torch.equal(saved, torch.full((4, 2), 7.0))
        assert (kind, output.tolist()) == ("DTensor", [[14.0] * 4])


def whole_wherever(rank: Rank) -> list[Any]:
    """A state dict of a net that was made FULL before its root was sharded, and one of a layer that has no call."""
    net = nn.Sequential(linear(), linear())
    sharded(rank, net[0])
    fsdp.set_state_dict_type(net, fsdp.StateDictType.FULL)
    net[1].register_state_dict_post_hook(lambda _, state, prefix, __: state.update({f"{prefix}weight": torch.zeros(1)}))
    sharded(rank, net)
    return [net.state_dict(), net[0].state_dict(), net[1].state_dict()]


def test_state_dicts_of_type_full_are_whole_of_each_module_and_hooks_have_the_last_word() -> None:
    """Whole are also parameters sharded later, and those of a plain layer; what a user's hook has put in stays."""
    whole, zeros = linear().weight.detach(), torch.zeros(1)
    for net, first, second in on_ranks(2, whole_wherever):
        found = (*net.values(), *first.values(), *second.values())
        assert [*map(torch.equal, found, (whole, zeros) * 2)] == [True] * 4


def coded_columns(rank: Rank) -> list[Any]:
    """Two steps of a layer cut along dim 1 whose rows travel with a scale."""
    net = sharded(rank, linear(), shard_placement_fn=lambda _: Shard(1))
    local = net.weight._local_tensor

    def pre(self: Tensor, mesh: Any) -> Any:
        return (self * 2, torch.full((1,), 0.5)), None

    def post(self: Tensor, outputs: Any, _: Any, dtype: Any, *, out: Any = None) -> Any:
        whole = outputs[0] * outputs[1][0]
        if out is not None:
            out.copy_(whole)
            return None
        return whole, (whole,)

    local.fsdp_pre_all_gather, local.fsdp_post_all_gather = pre.__get__(local), post.__get__(local)
    outputs = []
    for _ in range(2):
        output = net(torch.ones(1, 2))
        output.sum().backward()
        outputs.append(output.detach())
        net.zero_grad()
    return outputs


def test_extensions_work_on_columns_too() -> None:
    """What hooks send of columns is joined as columns, the first time and again."""
    for outputs in on_ranks(2, coded_columns):
        for output in outputs:
            assert torch.equal(output, linear()(torch.ones(1, 2)).detach())


def in_part_beside_tp(rank: Rank) -> str:
    """What becomes of int resharding of a parameter that is a DTensor."""
    mesh = rank.mesh((4, 1), ("dp", "tp"))
    inner = linear()
    inner.weight = nn.Parameter(distribute_tensor(inner.weight.detach(), mesh["tp"], [Shard(1)]))
    net = nn.Sequential(fsdp.fully_shard(inner, mesh=mesh["dp"], reshard_after_forward=2))
    fsdp.fully_shard(net, mesh=mesh["dp"])
    x = DTensor.from_local(torch.ones(1, 2), mesh["tp"], [Shard(1)])
    return refusal(net, x)[1]


def test_dtensor_parameters_are_not_kept_in_part() -> None:
    """Resharding to a smaller mesh is refused, by a sentence, for parameters under tensor parallelism."""
    assert all("expects plain parameters, got a DTensor" in words for words in on_ranks(4, in_part_beside_tp))


def patched_then_replaced(rank: Rank) -> list[Tensor]:
    """Outputs with hooks on one rank's tensor, whose rows are then put into other memory."""
    net = sharded(rank, linear(3))
    local = net.weight._local_tensor

    def pre(self: Tensor, mesh: Any, size: torch.Size, stride: Any, module: Any, policy: Any) -> Any:
        rows = torch.zeros(-(-size[0] // mesh.size()), *size[1:])
        rows[: self.size(0)] = self
        return (rows * 2,), size

    def post(self: Tensor, outputs: Any, size: torch.Size, dtype: Any, *, out: Any = None) -> Any:
        whole = outputs[0][: size[0]].clone()
        return (whole, (whole,)) if out is None else out.copy_(whole)

    local.fsdp_pre_all_gather, local.fsdp_post_all_gather = pre.__get__(local), post.__get__(local)
    first = net(torch.ones(1, 2)).detach()
    moved = local.clone()
    moved.fsdp_pre_all_gather, moved.fsdp_post_all_gather = pre.__get__(moved), post.__get__(moved)
    net.weight._local_tensor = moved
    return [first, net(torch.ones(1, 2)).detach()]


def test_hooks_on_one_tensor_follow_it_into_padded_memory() -> None:
    """Where rows are padded, what a user has put on the tensor goes with its numbers."""
    for outputs in on_ranks(2, patched_then_replaced):
        for output in outputs:
            assert torch.equal(output, 2 * linear(3)(torch.ones(1, 2)).detach())


def within_replicas(rank: Rank) -> list[Any]:
    """Gradients where torch's DDP replicates a net of which the reference has sharded a module."""
    net = nn.Sequential(sharded(rank, linear(2)), linear(2))
    replicate(net, ignored_modules=[net[0]])
    net(torch.full((1, 2), 1.0 + rank.number)).sum().backward()
    return [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in net.parameters()]


def test_torchs_replicate_goes_around_modules_that_it_is_to_ignore() -> None:
    """Gradients are averaged over all ranks, within them and outside."""
    net = nn.Sequential(linear(2), linear(2))
    (sum(net(torch.full((1, 2), 1.0 + number)).sum() for number in range(2)) / torch.tensor(2.0)).backward()
    for got in on_ranks(2, within_replicas):
        assert all(torch.equal(one, p.grad) for one, p in zip(got, net.parameters(), strict=True))


def begun_early(rank: Rank) -> list[Any]:
    """What waiting for nothing gives after a forward, and how many modules from a generator are gathered ahead."""
    net: Any = sharded(rank, nn.Sequential(sharded(rank, linear(2)), sharded(rank, linear(2))))
    handle = net.finalize_backward(async_op=True)
    net.set_manual_backward_finalization(True)
    net.set_modules_to_forward_prefetch(module for module in net)
    net(torch.ones(1, 2))
    return [handle.wait(), len(own_state(net).options.forward_prefetch)]


def test_what_is_asked_before_the_first_forward_stands() -> None:
    """Then there is nothing to finalize, nor to wait for later; modules to gather ahead are kept, however they come."""
    assert on_ranks(2, begun_early) == [[None, 2]] * 2
