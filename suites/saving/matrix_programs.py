"""What runs on ranks to save a net in some layouts, and to load every one of them in others.

Saved as [1, 2] and [3] on two ranks, and by others as a whole, with 10 more: three ranks load [1], [2] and [3] from the
first and, into the same net, [11], [12] and [13] from the second.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from harness.worlds.rank import Rank
from suites.saving.checkpoint_programs import Facts, both, fresh, held, kept, laid_out, overwrite, read, save
from suites.saving.matrix import MatrixCase
from suites.saving.resume_programs import resume, saved_behind, train_and_save


def save_each(rank: Rank, case: MatrixCase, path: str) -> None:
    """Save in each layout, into a directory of its own."""
    for place, saved in enumerate(case.saved):
        save(rank, case.pair(place, saved), f"{path}/{place}")


def load_each(rank: Rank, case: MatrixCase, path: str) -> list[Facts]:
    """In each layout load all that was saved, one after the other; what this rank holds and keeps each time."""
    found = []
    for layout in case.loaded:
        net = fresh(rank, case.pair(0, layout))
        optimizer = case.pair(0, layout).make_optimizer(net.parameters(), rate=1.0)
        for place in range(len(case.saved)):
            read(rank, net, optimizer, f"{path}/{place}")
            rate = optimizer.param_groups[0]["lr"]
            found.append({"net": held(net), "optimizer": kept(net, optimizer), "rate": rate})
    return found


def train_and_save_each(rank: Rank, case: MatrixCase, path: str) -> None:
    """Train in each layout, then save."""
    for place, saved in enumerate(case.saved):
        train_and_save(rank, case.pair(place, saved), f"{path}/{place}")


def resume_each(rank: Rank, case: MatrixCase, path: str) -> list[Facts]:
    """Load every pair into a fresh net and optimizer, and take one more step."""
    places = [place for _ in case.loaded for place in range(len(case.saved))]
    return [resume(rank, pair, f"{path}/{place}") for pair, place in zip(case.pairs(), places, strict=True)]


def save_each_in_the_background(rank: Rank, case: MatrixCase, path: str) -> None:
    """Save in each layout in the background, and overwrite all that is saved before anything is written."""
    group = dist.new_group(backend="gloo")
    for place, saved in enumerate(case.saved):
        net, optimizer = laid_out(rank, case.pair(place, saved))
        with saved_behind(both(rank, net, optimizer), f"{path}/{place}", group):
            overwrite([*net.parameters(), *net.buffers()])
            overwrite([v for kept in optimizer.state.values() for v in kept.values() if isinstance(v, torch.Tensor)])
    dist.destroy_process_group(group)
