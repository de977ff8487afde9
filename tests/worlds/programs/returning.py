"""Programs of which rank 1 returns what cannot travel, or loses what its result travels on."""

from __future__ import annotations

import collections
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from harness.worlds import wire
from harness.worlds.rank import Rank
from tests.worlds.programs.basic import FAULTY, _meet


def returns_a_mapping(rank: Rank) -> Any:
    """Rank 1 returns what is almost a dict."""
    return collections.OrderedDict(loss=1.0) if rank.number == FAULTY else None


class _Quantity(torch.Tensor):
    """Almost a tensor."""


def returns_a_quantity(rank: Rank) -> Any:
    """Rank 1 returns what is almost a tensor."""
    return [torch.ones(2).as_subclass(_Quantity)] if rank.number == FAULTY else None


def returns_no_numbers(rank: Rank) -> Any:
    """Rank 1 returns a tensor without any data."""
    return torch.empty(2, device="meta") if rank.number == FAULTY else None


def returns_itself(rank: Rank) -> Any:
    """Rank 1 returns a list that contains itself."""
    endless: list[Any] = []
    endless.append(endless)
    return endless if rank.number == FAULTY else None


def returns_too_much(rank: Rank) -> Any:
    """Rank 1 returns more than a result may have."""
    return torch.empty(wire.LIMIT + 1, dtype=torch.uint8) if rank.number == FAULTY else None


# What results travel on.


def closes_all_files(rank: Rank) -> None:
    """Rank 1 closes all files, also those of its process, and goes on."""
    if rank.number == FAULTY:
        os.closerange(3, 256)
        time.sleep(1000)
    _meet()


def closes_all_files_and_returns(rank: Rank) -> None:
    """All ranks meet; then rank 1 closes all files, also those of its process, and returns."""
    _meet()
    if rank.number == FAULTY:
        os.closerange(3, 256)


def closes_its_output(rank: Rank) -> None:
    """Rank 1 closes stdout and stderr, and returns."""
    if rank.number == FAULTY:
        os.close(1)
        os.close(2)


def writes_to_every_pipe(rank: Rank) -> None:
    """Rank 1 writes to descriptors that are not its own, among them that of its process' answers."""
    if rank.number == FAULTY:
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\0\0\0\x04junk")
            except OSError:
                continue
        time.sleep(1000)
    _meet()


def removes_its_files(rank: Rank) -> None:
    """Rank 1 removes the directory that its process writes to, and returns."""
    if rank.number == FAULTY:
        shutil.rmtree(Path(os.readlink("/proc/self/fd/1")).parent)
