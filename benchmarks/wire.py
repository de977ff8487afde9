"""The collectives of a step and nothing else: what no implementation can go below that sends the same.

A step of two layers on two ranks, fp32, resharding::

    gather 1, gather 2 | gather 2, reduce 2, gather 1, reduce 1      one by one, each waited for, on buffers made before

Whether a world is bound by its host can be read off it: what is left of a step beside these calls is the host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.collective_trace.recorder import Entry
from harness.worlds.rank import Rank


class Wire:
    """Takes steps that issue the given collectives in their order."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._calls = [_call(entry) for entry in entries]

    def step(self) -> list[float]:
        """Take one; when it started, when all collectives were done, and the same again, in seconds."""
        start = time.monotonic()
        for call in self._calls:
            call()
        end = time.monotonic()
        return [start, end, end]


def wire_of(rank: Rank, step: Callable[[], Any]) -> Wire:
    """The collectives that ``step`` issues on this rank."""
    with rank.collectives() as entries:
        step()
    return Wire(entries)


def _call(entry: Entry) -> Callable[[], Any]:
    source, target = (_buffer(entry[end]) for end in ("input", "output"))
    assert len(entry["ranks"]) == dist.get_world_size(), f"a collective of part of the world is not expected: {entry}"
    if entry["op"] == "all_gather":
        return partial(dist.all_gather_into_tensor, target, source)
    assert entry["op"] == "reduce_scatter", f"expected gathers and reduce-scatters, got {entry}"
    return partial(dist.reduce_scatter_tensor, target, source, op=getattr(dist.ReduceOp, entry["reduce"]))


def _buffer(amount: dict[str, Any]) -> Tensor:
    return torch.zeros(amount["numel"], dtype=getattr(torch, amount["dtype"]))
