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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.oracle.layout import is_dtensor, own, seen
from suites.oracle.sharded import Sharded
from suites.saving.chains import Chain, CheckpointCase, Layout

Facts = dict[str, Any]
#: The axes of layouts that have several.
AXES = {"HSDP": ("replicate", "shard"), "2-D": ("shard", "tp"), "3-D": ("replicate", "shard", "tp")}


# A net on ranks.


class OnRank(Sharded):
    """A case's net and its optimizer, as they lie on one rank where it is loaded; of ``here()``, where it is saved."""

    def made(self) -> Chain:
        """The net that is saved."""
        return spread(self.rank, self.case, self.case.build())

    def remember(self) -> OnRank:
        """Have the optimizer keep the case's known numbers: this rank's part of each."""
        for name, known in self.case.moments().items():
            parameter = self.held[name]
            for key, full in known.items():
                part = full if key == "step" else like(parameter, self.case.part(self.rank.number, name, full))
                self.optimizer.state[parameter][key] = part
        return self

    def facts(self) -> Facts:
        """This rank's part of every entry of the state dict, what it keeps for the optimizer, and the rate of that."""
        net = {name: seen(value) for name, value in self.net.state_dict().items()}
        return {"net": net, "optimizer": self.see_optimizer(), "rate": self.optimizer.param_groups[0]["lr"]}

    def state(self, options: StateDictOptions | None = None) -> Facts:
        """The state of both, by names, as the implementation's own functions say it, or torch's."""
        states = self.rank.implementation.state_dicts
        return {
            "net": states.get_model_state_dict(self.net, options=options),
            "optimizer": states.get_optimizer_state_dict(self.net, self.optimizer, options=options),
        }

    def give(self, state: Facts, options: StateDictOptions | None = None) -> None:
        """Load the state of both."""
        states = self.rank.implementation.state_dicts
        states.set_model_state_dict(self.net, state["net"], options=options)
        states.set_optimizer_state_dict(self.net, self.optimizer, state["optimizer"], options=options)

    def write(self, path: str) -> None:
        """Save both; files need not outlive the machine, so no test waits for its disk."""
        write_files(self.state(), storage_writer=FileSystemWriter(path, sync_files=False))

    def read(self, path: str, partly: bool = False) -> None:
        """Load what was saved. ``partly`` leaves alone what was not: an unused parameter has no optimizer state."""
        state = self.state()
        planner = DefaultLoadPlanner(allow_partial_load=partly)
        read_files(state, storage_reader=FileSystemReader(path), planner=planner)
        self.give(state, StateDictOptions(strict=not partly))


class Other(OnRank):
    """A net to be loaded into, of other values, or made on meta; and an optimizer of another rate."""

    def __init__(self, rank: Rank, case: CheckpointCase) -> None:
        super().__init__(rank, case)
        self.rate("1.0")

    def made(self) -> Chain:
        """What is made on meta is then given memory that is full of 1337.

        Nets that need memory before anything is applied, as whole replicas without DTensors do, are given it first.
        """
        if not self.case.meta:
            return spread(self.rank, self.case, self.case.other())
        with torch.device("meta"):
            net: Chain = self.case.net.build().to(getattr(torch, self.case.loaded_dtype))
        at_once = self.case.loaded.kind in ("unsharded", "replicate")
        if at_once:
            net.to_empty(device=self.rank.device)
        spread(self.rank, self.case, net)
        if not at_once:
            net.to_empty(device=self.rank.device)
        overwrite([*net.parameters(), *net.buffers()])
        return net


def spread(rank: Rank, case: CheckpointCase, net: Chain) -> Chain:
    """Lay the net out where it is loaded: cut by tensor parallelism, then layer by layer and as a whole."""
    subject, layout = rank.implementation, case.loaded
    if not any(parameter.is_meta for parameter in net.parameters()):
        net.to(rank.device)
    if layout.kind == "replicate":
        subject.replicate(net)
    if layout.kind in ("unsharded", "replicate"):
        return net
    call = subject.replicate_fsdp if layout.kind == "replicate-fsdp" else subject.fully_shard
    assert call is not None
    data, tensor_parallel = meshes(rank, layout)
    if tensor_parallel:
        cut_over_tp(net, tensor_parallel)
    for module in [*(net.layers[place] for place in case.sharded), net]:
        call(module, mesh=data)
    return net


def meshes(rank: Rank, layout: Layout) -> tuple[DeviceMesh, DeviceMesh | None]:
    """The mesh that the implementation is given, and that of tensor parallelism if there is any."""
    if layout.kind not in AXES:
        return rank.mesh(), None
    axes, sizes = AXES[layout.kind], {"replicate": layout.replicas, "shard": layout.shards, "tp": layout.tp}
    mesh = rank.mesh(tuple(sizes[axis] for axis in axes), axes)
    return (mesh[axes[:-1]], mesh["tp"]) if "tp" in axes else (mesh, None)


def cut_over_tp(net: Chain, mesh: DeviceMesh) -> None:
    """Cut the layers in pairs, the first by columns, the second by rows."""
    for place, layer in enumerate(net.layers):
        parallelize_module(layer, mesh, RowwiseParallel() if place % 2 else ColwiseParallel())


def like(parameter: nn.Parameter, values: Tensor) -> Tensor:
    """A new tensor that lies on ranks as the parameter does, with this rank's ``values``."""
    asks_for(Feature.ROW_LAYOUT)
    made = torch.zeros_like(parameter.detach())
    own(made).copy_(values)
    return made


def lie(state: Facts) -> Facts:
    """How each entry lies on ranks: on which, with which placements and global size; None for what is no DTensor."""
    return {
        name: (value.device_mesh.mesh.tolist(), value.placements, value.size()) if is_dtensor(value) else None
        for name, value in state.items()
    }


@torch.no_grad()
def overwrite(tensors: Iterable[Tensor]) -> None:
    """Lose this rank's part of all values."""
    for tensor in tensors:
        own(tensor).fill_(1337)


# Saving in every layout, each into a directory of its own, and loading every one of them in every other.


def saved(rank: Rank, case: CheckpointCase) -> list[OnRank]:
    """The net to be saved in each layout, and its optimizer with known numbers."""
    return [OnRank(rank, case.here(place)).remember() for place in range(len(case.savers))]


def save(rank: Rank, case: CheckpointCase, path: str) -> None:
    """Save the net and its optimizer."""
    for place, net in enumerate(saved(rank, case)):
        net.write(f"{path}/{place}")


def load(rank: Rank, case: CheckpointCase, path: str) -> list[Facts]:
    """Load both into a net of other values and a new optimizer of another rate; what this rank holds each time."""
    found, pairs = [], case.pairs()
    for first in range(0, len(pairs), len(case.savers)):
        other = Other(rank, pairs[first])
        for place in range(len(case.savers)):
            other.read(f"{path}/{place}")
            found.append(other.facts())
    return found
