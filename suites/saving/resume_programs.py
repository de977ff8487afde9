"""Training, stopping and going on: with files between, in the background, and out of order."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_files
from torch.distributed.checkpoint.state_dict_saver import async_save

from harness.trial import Trial
from harness.worlds.base import Program
from harness.worlds.rank import Rank
from suites.oracle.expected import Expected
from suites.oracle.layout import seen
from suites.oracle.sharded import State
from suites.oracle.situation import STEP
from suites.saving import checkpoint_programs as programs
from suites.saving.chains import CheckpointCase, NeverStopped
from suites.saving.checkpoint_programs import Facts, OnRank, Other, lie, overwrite, saved
from suites.saving.checkpoint_strategies import directory

#: How long the background waits for the program to change what it saves; a program that fails lets go at once.
PATIENCE = 60.0


def restore(rank: Rank, case: CheckpointCase, path: str) -> Facts:
    """Save, take a step, load into the same net: what changed, what is held then, on which meshes and placements."""
    net = OnRank(rank, case).remember()
    net.write(path)
    before = lie(net.net.state_dict())
    changed = stepped(net)
    net.read(path)
    return {"changed": changed, "loaded": net.facts(), "lies as before": lie(net.net.state_dict()) == before}


def stepped(net: OnRank) -> dict[str, bool]:
    """Take a step; whether it changed this rank's part of every parameter."""
    before = net.see_parameters()
    net.do_all(STEP)
    after = net.see_parameters()
    return {name: not torch.equal(after[name], part) for name, part in before.items()}


def train_and_save(rank: Rank, case: CheckpointCase, path: str) -> None:
    """Train the case's steps in each layout, then save."""
    for place in range(len(case.savers)):
        net = OnRank(rank, case.here(place))
        net.do_all(STEP * case.steps)
        net.write(f"{path}/{place}")


def resume(rank: Rank, case: CheckpointCase, path: str) -> list[list[State]]:
    """Load each pair into a net of other values, which has run forward already, and a new optimizer; then step.

    What was made on meta has run nothing yet.
    """
    return [_resume(Other(rank, pair), f"{path}/{place % len(case.savers)}") for place, pair in enumerate(case.pairs())]


def _resume(net: Other, path: str) -> list[State]:
    case: CheckpointCase = net.case
    if not case.meta:
        case.run(net.net, 0, 0, case.torch_dtype, net.rank.device)
    net.read(path, partly=case.net.unused)
    net.batches = case.steps
    start = len(case.actions) - len(STEP[:-1])
    return [net.do(action, case.shown(start + place)) for place, action in enumerate(case.actions[start:])]


def load_the_net_alone(rank: Rank, case: CheckpointCase, path: str) -> dict[str, Tensor]:
    """Of what was saved load the net alone, asking for its entries in another order on every rank."""
    net, states = Other(rank, case).net, rank.implementation.state_dicts
    state = states.get_model_state_dict(net)
    names = list(state)
    turn = rank.number % len(names)
    asked = {name: state[name] for name in names[turn:] + names[:turn]}
    read_files({"net": asked}, storage_reader=FileSystemReader(f"{path}/0"))
    states.set_model_state_dict(net, asked)
    return {name: seen(value) for name, value in net.state_dict().items()}


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
def saved_behind(net: OnRank, path: str) -> Iterator[None]:
    """Save in the background, and write nothing until the block has ended; then all of it.

    Files are written, and ranks agree on them, through a group of its own that has a CPU backend.
    """
    group, patient = dist.new_group(backend="gloo"), Patient(path)
    done: Any = async_save(net.state(), storage_writer=patient, process_group=group)
    try:
        yield
    finally:
        patient.go_on.set()
    done.result()
    dist.destroy_process_group(group)


def save_in_the_background(rank: Rank, case: CheckpointCase, path: str) -> None:
    """Save in each layout in the background, and overwrite all that is saved before anything is written."""
    for place, net in enumerate(saved(rank, case)):
        with saved_behind(net, f"{path}/{place}"):
            overwrite([*net.net.parameters(), *net.net.buffers()])
            overwrite([value for kept in net.optimizer.state.values() for value in kept.values()])


def through_bytes(rank: Rank, case: CheckpointCase) -> Facts:
    """Every rank's own state dict through ``torch.save`` and ``torch.load``; what comes back, and how it lies."""
    state = OnRank(rank, case).net.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    return {
        "lies as before": lie(back) == lie(state),
        "net": {name: seen(value) for name, value in back.items()},
    }


# Saving in some layouts, loading in others, and requiring of every pair what is right.


def moves(trial: Trial, case: CheckpointCase, save: Program = programs.save) -> None:
    """Save and load; require of every pair, on every rank, its part of what was saved, in the loading net's dtype."""
    trial.needs(max(case.world_size, case.loaded.ranks))
    with directory() as path:
        trial.run(save, case, path)
        ranks = trial.run(programs.load, case, path, ranks=case.loaded.ranks)
    for number, found in enumerate(ranks):
        for pair, got in zip(case.pairs(), found, strict=True):
            trial.agree(f"rank {number}, {pair.route}", got, pair.held(number))


def resumes(trial: Trial, case: CheckpointCase) -> None:
    """Train, save, load and step; require, of every pair, what the unsharded net has that never stopped.

    Its optimizer keeps nothing for what is unused; what another one keeps for it does not matter.
    """
    trial.needs(max(case.world_size, case.loaded.ranks))
    with directory() as path:
        trial.run(train_and_save, case, path)
        ranks = trial.run(resume, case, path, ranks=case.loaded.ranks)
    for place, pair in enumerate(case.pairs()):
        want = Expected(pair, NeverStopped)
        for number, found in enumerate(ranks):
            due = [want.on_rank(at, number) for at in range(-len(STEP[:-1]), 0)]
            kept = found[place][-1]["optimizer"]
            found[place][-1]["optimizer"] = {name: kept.get(name) for name in due[-1]["optimizer"]}
            trial.agree(f"rank {number}, {pair.route}", found[place], due, within=want.within)
