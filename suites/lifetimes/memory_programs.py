"""What runs on ranks to learn how many bytes they hold, moment by moment.

A rank of two that holds half of 32 kB, and gathers and frees blocks of 4 kB, tells::

    {"built": 16 kB, "in forward 1": 28 kB, "after forward 1": 16 kB, "in backward 1": 48 kB, …}
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Shard

from harness.worlds.rank import Rank
from suites.kit.programs import data_mesh, policy_of
from suites.lifetimes.memory import ExpertMemoryCase, MemoryCase
from suites.lifetimes.tally import Tally
from suites.oracle.layout import own
from suites.oracle.sharded import Sharded
from suites.oracle.situation import STEP

Bytes = dict[str, int]
#: Rounds after which nothing may grow.
ROUNDS = 8
#: How often other threads are given way: many times more than they need to let go of a tensor.
MOST_TURNS = 2000


class Held(Sharded):
    """The net of a case, on one rank; what rests on the CPU is built there."""

    def made(self) -> Any:
        """The net, sharded."""
        device = "cpu" if "offload_policy" in self.options else self.rank.device
        return spread(self.rank, self.case, self.case.build().to(device), **self.options)


def spread(rank: Rank, case: MemoryCase, net: nn.Sequential, **options: Any) -> Any:
    """Shard block by block, then the rest."""
    fully_shard = rank.implementation.fully_shard
    options["mesh"] = data_mesh(rank, case)
    if case.policy:
        options["mp_policy"] = policy_of(rank, case)
    if case.reshard_after_forward is not None:
        options["reshard_after_forward"] = case.reshard_after_forward
    if isinstance(case, ExpertMemoryCase):
        options["shard_placement_fn"] = on_their_meshes(rank, case, net)
    for block in list(net)[:-1]:
        if case.form == "recomputed":
            rank.implementation.checkpoint(block)
        fully_shard(block, **options)
    fully_shard(net, **options)
    return net


def on_their_meshes(rank: Rank, case: ExpertMemoryCase, net: nn.Sequential) -> Callable[[nn.Parameter], Any]:
    """A placement function that has experts cut over the ranks that have the same; it keeps no parameter alive."""
    subject = rank.implementation
    mesh = rank.mesh((case.copies, case.ep), ("copies", "ep"))["copies"]
    placed = subject.shard_placement_result(Shard(0), subject.shard_mesh_info(mesh))
    blocks: list[Any] = list(net)[:-1]
    experts = {id(parameter) for block in blocks for parameter in block[1].parameters()}
    return lambda parameter: placed if id(parameter) in experts else None


def moments(net: Held, gauge: Tally | Allocator, actions: Sequence[str]) -> Bytes:
    """The bytes in and after every action, with how often it has come by then: ``after backward 2``."""
    found, times = Bytes(built=gauge.alive(), registered=registered(net.net)), Counter[str]()
    for action in actions:
        verb = action.partition(" ")[0]
        times[verb] += 1
        gauge.peak()
        net.do(action, ())
        found[f"in {verb} {times[verb]}"] = gauge.peak()
        found[f"after {verb} {times[verb]}"] = gauge.alive()
    return found


def registered(net: nn.Module) -> int:
    """The bytes behind all registered parameters: of memory that is shared, or that they see a part of, all, once."""
    parts = [own(p) for p in net.parameters()]
    memory = {id(part.untyped_storage()): part.untyped_storage() for part in parts}
    return sum(each.nbytes() for each in memory.values())


def counted(rank: Rank, case: MemoryCase, actions: Sequence[str] = STEP * 2) -> Bytes:
    """The bytes of this rank's tensors; what is done once is done in the first of two steps."""
    with Tally() as tally:
        return moments(Held(rank, case), tally, actions)


def many_times(rank: Rank, case: MemoryCase, actions: Sequence[str], collecting: bool) -> list[int]:
    """The bytes after each of many rounds of actions.

    Unless ``collecting``, cycles are left where they are: a cycle with a tensor in it holds that tensor's memory.
    Threads of a backend may hold the tensors of a collective for a while after it is complete: they are given way until
    there are no more bytes than before, or until that has been in vain so often that what is there stays.
    """
    gc.collect()
    gc.disable()
    try:
        with Tally() as tally:
            net = Held(rank, case)
            found: list[int] = []
            for _ in range(ROUNDS):
                net.do_all(actions)
                if collecting:
                    gc.collect()
                found.append(settled(tally, found[-1] if found else 0))
    finally:
        gc.enable()
    return found


def settled(tally: Tally, goal: int) -> int:
    """The bytes once other threads have had many turns, or as soon as there are no more than ``goal``."""
    for _ in range(MOST_TURNS):
        if tally.alive() <= goal:
            break
        os.sched_yield()
    return tally.alive()


def deleted(rank: Rank, case: MemoryCase) -> Bytes:
    """The bytes once a net that was trained is gone, and once another one is built."""
    found: Bytes = {}
    with Tally() as tally:
        for when in ("first", "second"):
            Held(rank, case).do_all(STEP[:-1])
            settled(tally, 0)  # a device's backward lets go on threads of its own, maybe only now
            gc.collect()
            found[f"after the {when} is gone"] = tally.alive()
    return found


# On an accelerator.

#: How much less the statistics count than a new tensor takes.
UNCOUNTED = "of a new tensor, what is not counted"


class Allocator:
    """What the device's allocator has given out, beyond what it had before."""

    def __init__(self) -> None:
        self._before = torch.accelerator.memory_allocated()

    def alive(self) -> int:
        """Bytes in memory now."""
        torch.accelerator.synchronize()
        return torch.accelerator.memory_allocated() - self._before

    def peak(self) -> int:
        """The most bytes at once since this was last asked."""
        torch.accelerator.synchronize()
        highest = torch.accelerator.max_memory_allocated() - self._before
        torch.accelerator.reset_peak_memory_stats()
        return highest


def allocated(rank: Rank, case: MemoryCase, offload: bool = False) -> Bytes:
    """The bytes that the device's allocator counts in two steps."""
    warm = nn.Linear(case.dim, case.dim, device=rank.device)
    case.run(
        warm, 0, 0, case.torch_dtype, rank.device
    ).sum().backward()  # workspaces of libraries are there from now on
    del warm
    gauge, options = Allocator(), dict[str, Any]()
    probe = torch.empty(2**20, device=rank.device)
    uncounted = probe.nbytes - gauge.alive()
    del probe
    if offload:
        options["offload_policy"] = rank.implementation.cpu_offload_policy()
    return {**moments(Held(rank, case, **options), gauge, STEP * 2), UNCOUNTED: uncounted}
