"""What runs on ranks to train, stop, and go on: with files between, in the background, and out of order."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_files
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as write_files
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.oracle.layout import own
from suites.saving.chains import CheckpointCase
from suites.saving.checkpoint_programs import (
    Facts,
    both,
    fresh,
    held,
    kept,
    laid_out,
    read,
    spread,
    states,
    step,
    writer,
)

#: How long the background waits for the program to change what it saves; a program that fails lets go at once.
PATIENCE = 60.0


def restore(rank: Rank, case: CheckpointCase, path: str) -> Facts:
    """Save, take a step, load into the same net: what is held each time, and on which meshes and placements."""
    net, optimizer = laid_out(rank, case)
    write_files(both(rank, net, optimizer), storage_writer=writer(path))
    saved: Facts = {"net": held(net), "optimizer": kept(net, optimizer)}
    before = lies(net.state_dict())
    step(rank, case, case.saved, net, optimizer, 0)
    stepped = {name: own(value).clone() for name, value in net.state_dict().items()}
    read(rank, net, optimizer, path)
    loaded = {"net": held(net), "optimizer": kept(net, optimizer)}
    changed = {name: not torch.equal(stepped[name], saved["net"][name]) for name in dict(net.named_parameters())}
    return {"saved": saved, "changed": changed, "loaded": loaded, "lies as before": lies(net.state_dict()) == before}


def lies(state: dict[str, Any]) -> dict[str, Any]:
    """On which mesh every entry lies, and how."""
    return {name: (v.device_mesh, v.placements) for name, v in state.items() if isinstance(v, DTensor)}


def train_and_save(rank: Rank, case: CheckpointCase, path: str) -> int:
    """Train the case's steps, then save; how many there were."""
    net = spread(rank, case, case.saved, case.build())
    optimizer = case.make_optimizer(net.parameters())
    for number in range(case.steps):
        step(rank, case, case.saved, net, optimizer, number)
    write_files(both(rank, net, optimizer), storage_writer=writer(path))
    return case.steps


def resume(rank: Rank, case: CheckpointCase, path: str) -> Facts:
    """Load into a net of other values, which has run forward already, and a new optimizer; then take one more step.

    What was made on meta has run nothing yet.
    """
    net = fresh(rank, case)
    optimizer = case.make_optimizer(net.parameters(), rate=1.0)
    if not case.meta:
        net(case.inputs(0, 0).to(rank.device, getattr(torch, case.dtype)))
    read(rank, net, optimizer, path, partly=case.net.unused)
    loss = step(rank, case, case.loaded, net, optimizer, case.steps)
    return {"loss": loss, "net": held(net), "optimizer": kept(net, optimizer)}


def load_the_net_alone(rank: Rank, case: CheckpointCase, path: str) -> Facts:
    """Of what was saved load the net alone, asking for its entries in another order on every rank."""
    net = spread(rank, case, case.loaded, case.other())
    state = states(rank).get_model_state_dict(net)
    names = list(state)
    turn = rank.number % len(names)
    asked = {name: state[name] for name in names[turn:] + names[:turn]}
    read_files({"net": asked}, storage_reader=FileSystemReader(path))
    states(rank).set_model_state_dict(net, asked)
    return held(net)


class Patient(FileSystemWriter):
    """Writes no data before a signal that what it writes has been changed in the meantime."""

    def __init__(self, path: str) -> None:
        super().__init__(path, sync_files=False)
        self.go_on = threading.Event()

    def write_data(self, *args: Any) -> Any:
        """Wait, then write."""
        self.go_on.wait(PATIENCE)
        return super().write_data(*args)


@contextmanager
def saved_behind(state: Facts, path: str, group: dist.ProcessGroup) -> Iterator[None]:
    """Save in the background, and write nothing until the block has ended; then all of it."""
    patient = Patient(path)
    done: Any = async_save(state, storage_writer=patient, process_group=group)
    try:
        yield
    finally:
        patient.go_on.set()
    done.result()


def save_in_the_background(rank: Rank, case: CheckpointCase, path: str) -> Facts:
    """Save in the background and take a step before anything is written: what was held before, and whether it moved.

    Files are written, and ranks agree on them, through a group of its own that has a CPU backend.
    """
    net, optimizer = laid_out(rank, case)
    group, before = dist.new_group(backend="gloo"), held(net)
    with saved_behind(both(rank, net, optimizer), path, group):
        step(rank, case, case.saved, net, optimizer, 0)
    after = held(net)
    dist.destroy_process_group(group)
    return {"changed": {name: not torch.equal(after[name], before[name]) for name in dict(net.named_parameters())}}


def through_bytes(rank: Rank, case: CheckpointCase) -> Facts:
    """Every rank's own state dict through ``torch.save`` and ``torch.load``; what comes back, and how it lies."""
    net, _ = laid_out(rank, case)
    state = net.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    same = {name: alike(back[name], value) for name, value in state.items()}
    return {"lies as before": same, "net": {name: own(value).clone() for name, value in back.items()}}


def alike(came: Any, went: Any) -> bool:
    """Whether two entries are of one kind, on like meshes with the same placements and global sizes."""
    if not isinstance(went, DTensor):
        return not isinstance(came, DTensor)
    meshes = came.device_mesh.mesh.tolist() == went.device_mesh.mesh.tolist()
    return bool(meshes and came.placements == went.placements and came.size() == went.size())
