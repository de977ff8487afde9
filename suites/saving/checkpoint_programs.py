"""What runs on ranks to save a net and its optimizer with ``torch.distributed.checkpoint``, and to load both.

Saved on two ranks and loaded on three, a weight of five rows moves so::

    saved: rank 0 rows 0-2, rank 1 rows 3, 4    loaded: rank 0 rows 0, 1, rank 1 rows 2, 3, rank 2 row 4
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.checkpoint.state_dict_loader import load as read_files
from torch.distributed.checkpoint.state_dict_saver import save as write_files
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harness.vendor import StateDicts
from harness.worlds.rank import Rank
from suites.oracle.layout import local, own
from suites.saving.chains import Chain, CheckpointCase, Layout

Facts = dict[str, Any]


# A net on ranks.


def spread(rank: Rank, case: CheckpointCase, layout: Layout, net: Chain) -> Chain:
    """Lay the net out: cut by tensor parallelism, then layer by layer and as a whole by the implementation."""
    if not on_meta(net):
        net.to(rank.device)
    subject = rank.implementation
    if layout.kind == "unsharded":
        return net
    if layout.kind == "replicate":
        assert subject.replicate is not None
        subject.replicate(net)
        return net
    call = subject.replicate_fsdp if layout.kind == "replicate-fsdp" else subject.fully_shard
    assert call is not None
    mesh = data_mesh(rank, layout)
    if layout.tp > 1 or layout.kind in ("2-D", "3-D"):
        cut_over_tp(net, layout, tp_mesh(rank, layout))
    for module in [*(net.layers[place] for place in case.sharded), net]:
        call(module, mesh=mesh)
    return net


def on_meta(net: nn.Module) -> bool:
    """Whether a net has no memory yet."""
    return any(parameter.is_meta for parameter in net.parameters())


def fresh(rank: Rank, case: CheckpointCase) -> Chain:
    """A net to be loaded into: of other values, or made on meta and then given memory that is full of 1337.

    Nets that need memory before anything is applied, as whole replicas without DTensors do, are given it first.
    """
    if not case.meta:
        return spread(rank, case, case.loaded, case.other())
    net = case.net.empty(getattr(torch, case.loaded_dtype))
    at_once = case.loaded.kind in ("unsharded", "replicate")
    if at_once:
        net.to_empty(device=rank.device)
    spread(rank, case, case.loaded, net)
    if not at_once:
        net.to_empty(device=rank.device)
    overwrite([*net.parameters(), *net.buffers()])
    return net


@torch.no_grad()
def overwrite(tensors: Iterable[Tensor]) -> None:
    """Lose this rank's part of all values."""
    for tensor in tensors:
        own(tensor).fill_(1337)


def data_mesh(rank: Rank, layout: Layout) -> Any:
    """The mesh that the implementation is given."""
    if layout.kind == "HSDP":
        return rank.mesh((layout.replicas, layout.shards), ("replicate", "shard"))
    if layout.kind == "2-D":
        return rank.mesh((layout.shards, layout.tp), ("dp", "tp"))["dp"]
    if layout.kind == "3-D":
        return rank.mesh((layout.replicas, layout.shards, layout.tp), ("replicate", "shard", "tp"))[
            "replicate", "shard"
        ]
    return rank.mesh()


def tp_mesh(rank: Rank, layout: Layout) -> Any:
    """The mesh of tensor parallelism."""
    if layout.kind == "2-D":
        return rank.mesh((layout.shards, layout.tp), ("dp", "tp"))["tp"]
    return three_axes(rank, layout)["tp"]


def three_axes(rank: Rank, layout: Layout) -> Any:
    """The mesh of all axes."""
    return rank.mesh((layout.replicas, layout.shards, layout.tp), ("replicate", "shard", "tp"))


def cut_over_tp(net: Chain, layout: Layout, mesh: Any) -> None:
    """Cut the layers in pairs, the first by columns, the second by rows."""
    for place, layer in enumerate(net.layers):
        parallelize_module(layer, mesh, RowwiseParallel() if place % 2 else ColwiseParallel())


def step(rank: Rank, case: CheckpointCase, layout: Layout, net: nn.Module, optimizer: Any, number: int) -> Tensor:
    """One training step on this rank's batch; its loss."""
    place = rank.number // layout.tp
    outputs = net(case.inputs(number, place).to(rank.device, getattr(torch, case.dtype)))
    loss = case.loss(outputs, number, place)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# What is known of it.


def held(net: nn.Module) -> dict[str, Tensor]:
    """This rank's part of every entry of the state dict."""
    return {name: local(value) for name, value in net.state_dict().items()}


def kept(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """This rank's part of what the optimizer keeps for each parameter, by names."""
    states = {name: optimizer.state[p] for name, p in net.named_parameters() if p in optimizer.state}
    return {name: {key: plain(state[key]) for key in sorted(state)} for name, state in states.items()}


def plain(value: Any) -> Any:
    """A tensor's own part; anything else as it is."""
    return local(value) if isinstance(value, Tensor) else value


# Saving and loading.


def writer(path: str) -> FileSystemWriter:
    """Files need not outlive the machine, so no test waits for its disk."""
    return FileSystemWriter(path, sync_files=False)


def states(rank: Rank) -> StateDicts:
    """The implementation's own functions for state by names, or torch's."""
    return rank.implementation.state_dicts


def both(
    rank: Rank, net: nn.Module, optimizer: torch.optim.Optimizer, options: StateDictOptions | None = None
) -> Facts:
    """The state of both, by names."""
    return {
        "net": states(rank).get_model_state_dict(net, options=options),
        "optimizer": states(rank).get_optimizer_state_dict(net, optimizer, options=options),
    }


def give(rank: Rank, net: nn.Module, optimizer: Any, state: Facts, options: StateDictOptions | None = None) -> None:
    """Load the state of both."""
    states(rank).set_model_state_dict(net, state["net"], options=options)
    states(rank).set_optimizer_state_dict(net, optimizer, state["optimizer"], options=options)


def remember(net: nn.Module, optimizer: torch.optim.Optimizer, case: CheckpointCase, part: Any) -> None:
    """Have the optimizer keep the case's known numbers: this rank's part of each."""
    known = case.moments()
    for name, parameter in net.named_parameters():
        for key, full in known.get(name, {}).items():
            optimizer.state[parameter][key] = full.clone() if key == "step" else like(parameter, part(name, full))


def like(parameter: nn.Parameter, values: Tensor) -> Tensor:
    """A new tensor that lies on ranks as the parameter does, with this rank's ``values``."""
    made = torch.zeros_like(parameter.detach())
    own(made).copy_(values)
    return made


def laid_out(rank: Rank, case: CheckpointCase) -> tuple[Chain, torch.optim.Optimizer]:
    """The net to be saved, and its optimizer with known numbers."""
    net = spread(rank, case, case.saved, case.build())
    optimizer = case.make_optimizer(net.parameters())
    remember(net, optimizer, case, lambda name, full: case.saved.part(rank.number, name, full))
    return net, optimizer


def save(rank: Rank, case: CheckpointCase, path: str) -> Facts:
    """Save the net and its optimizer; what this rank holds of both."""
    net, optimizer = laid_out(rank, case)
    write_files(both(rank, net, optimizer), storage_writer=writer(path))
    return {"net": held(net), "optimizer": kept(net, optimizer)}


def load(rank: Rank, case: CheckpointCase, path: str) -> Facts:
    """Load both into a net of other values and a new optimizer of another rate; what this rank holds then."""
    net = fresh(rank, case)
    optimizer = case.make_optimizer(net.parameters(), rate=1.0)
    read(rank, net, optimizer, path)
    return {"net": held(net), "optimizer": kept(net, optimizer), "rate": optimizer.param_groups[0]["lr"]}


def read(rank: Rank, net: nn.Module, optimizer: torch.optim.Optimizer, path: str, partly: bool = False) -> None:
    """Load what was saved. ``partly`` leaves alone what was not: an unused parameter has no optimizer state."""
    state = both(rank, net, optimizer)
    planner = DefaultLoadPlanner(allow_partial_load=partly)
    read_files(state, storage_reader=FileSystemReader(path), planner=planner)
    give(rank, net, optimizer, state, StateDictOptions(strict=not partly))
