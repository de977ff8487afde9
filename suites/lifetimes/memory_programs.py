"""What runs on ranks to learn how many bytes they hold, moment by moment.

A rank of two that holds half of 32 kB, and gathers and frees blocks of 4 kB, tells::

    {"built": 16 kB, "in forward": 28 kB, "after forward": 16 kB, "in backward": 48 kB, "after backward": 32 kB, …}
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Shard

from harness.worlds.rank import Rank
from suites.kit.programs import data_mesh
from suites.lifetimes.memory import ExpertMemoryCase, MemoryCase
from suites.lifetimes.tally import Tally
from suites.oracle.layout import own

Bytes = dict[str, int]
#: Steps after which nothing may grow, and how many are looked at on either side.
STEPS, LOOKED_AT = 8, 3


def spread(rank: Rank, case: MemoryCase, net: nn.Sequential, **options: Any) -> Any:
    """Shard block by block, then the rest."""
    fully_shard = rank.implementation.fully_shard
    assert fully_shard is not None
    options["mesh"] = data_mesh(rank, case)
    if case.reshard_after_forward is not None:
        options["reshard_after_forward"] = case.reshard_after_forward
    if isinstance(case, ExpertMemoryCase):
        options["shard_placement_fn"] = on_their_meshes(rank, case, net)
    for block in list(net)[:-1]:
        fully_shard(block, **options)
    fully_shard(net, **options)
    return net


def on_their_meshes(rank: Rank, case: ExpertMemoryCase, net: nn.Sequential) -> Callable[[nn.Parameter], Any]:
    """A placement function that has experts cut over the ranks that have the same; it keeps no parameter alive."""
    subject = rank.implementation
    assert subject.shard_mesh_info is not None
    assert subject.shard_placement_result is not None
    mesh = rank.mesh((case.copies, case.ep), ("copies", "ep"))["copies"]
    placed = subject.shard_placement_result(Shard(0), subject.shard_mesh_info(mesh))
    blocks: list[Any] = list(net)[:-1]
    experts = {id(parameter) for block in blocks for parameter in block[1].parameters()}
    return lambda parameter: placed if id(parameter) in experts else None


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    """One without state, that works on one parameter at a time: so it needs next to no memory."""
    return torch.optim.SGD(net.parameters(), lr=0.01, foreach=False)


def loss_of(rank: Rank, case: MemoryCase, net: nn.Module, step: int) -> torch.Tensor:
    """A forward."""
    loss: torch.Tensor = net(case.batch(step, rank.number).to(rank.device)).sum()
    return loss


def stepped(rank: Rank, case: MemoryCase) -> Bytes:
    """The bytes at each moment of the second step; what is done once is done in the first."""
    with Tally() as tally:
        net = spread(rank, case, case.build().to(rank.device))
        found = {"built": tally.alive(), "registered": registered(net)}
        optimizer = optimizer_of(net)
        for step in range(2):
            tally.peak()
            loss = loss_of(rank, case, net, step)
            found |= {"in forward": tally.peak(), "after forward": tally.alive()}
            loss.backward()
            found |= {"in backward": tally.peak(), "after backward": tally.alive()}
            del loss
            optimizer.step()
            found["after step"] = tally.alive()
            optimizer.zero_grad()
            found["after zero_grad"] = tally.alive()
    return found


def registered(net: nn.Module) -> int:
    """The bytes behind all registered parameters: of memory that is shared, or that they see a part of, all, once."""
    parts = [own(p) for p in net.parameters()]
    memory = {id(part.untyped_storage()): part.untyped_storage() for part in parts}
    return sum(each.nbytes() for each in memory.values())


def accumulated(rank: Rank, case: MemoryCase, switch: str) -> Bytes:
    """The bytes after each of three micro-batches, of which ``switch`` has only the last one reduced."""
    with Tally() as tally:
        net = spread(rank, case, case.build().to(rank.device))
        found: Bytes = {}
        for micro in range(3):
            getattr(net, switch)(micro == 2)
            loss_of(rank, case, net, micro).backward()
            found[f"after micro-batch {micro}"] = tally.alive()
        net.zero_grad()
        found["after zero_grad"] = tally.alive()
    return found


def recomputed(rank: Rank, case: MemoryCase) -> Bytes:
    """The bytes after forward where every block has several layers and runs again in backward."""
    assert rank.implementation.checkpoint is not None
    with Tally() as tally:
        layers = [layer for _ in range(case.blocks) for layer in (nn.Linear(case.dim, case.dim), nn.Tanh())]
        blocks = [nn.Sequential(*layers[place : place + 4]) for place in range(0, len(layers), 4)]
        net = nn.Sequential(*blocks, nn.Linear(case.dim, 1)).to(rank.device)
        for block in blocks:
            rank.implementation.checkpoint(block)
        spread(rank, case, net)
        for step in range(2):
            loss = loss_of(rank, case, net, step)
            found = {"after forward": tally.alive()}
            loss.backward()
    return found


# Growth.


@contextmanager
def without_collection() -> Iterator[None]:
    """Leave cycles where they are: a cycle with a tensor in it holds that tensor's memory."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def many_steps(rank: Rank, case: MemoryCase) -> list[int]:
    """The bytes after each step of two forwards, a backward through both, and a forward without gradients."""
    with Tally() as tally, without_collection():
        net = spread(rank, case, case.build().to(rank.device))
        optimizer, found = optimizer_of(net), []
        for step in range(STEPS):
            (loss_of(rank, case, net, 2 * step) + loss_of(rank, case, net, 2 * step + 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
            net.eval()
            with torch.no_grad():
                loss_of(rank, case, net, step)
            net.train()
            found.append(tally.alive())
    return found


class Interrupted(Exception):
    """What the user's own code raises."""


def many_failures(rank: Rank, case: MemoryCase) -> list[int]:
    """The bytes after each step that follows one interrupted in forward, or, in turn, in backward, and a reset."""
    with Tally() as tally:
        net = spread(rank, case, case.build().to(rank.device))
        optimizer, found = optimizer_of(net), []
        for step in range(STEPS):
            _interrupted(rank, case, net, step)
            net.reset_iter_state()
            net.zero_grad()
            loss_of(rank, case, net, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            gc.collect()  # an exception and the frames that it went through are a cycle
            found.append(tally.alive())
    return found


def _interrupted(rank: Rank, case: MemoryCase, net: Any, step: int) -> None:
    """A step whose middle block raises when it runs, or when its gradient comes."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    def interrupt_backward(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(interrupt)

    middle = net[case.blocks // 2]
    in_forward = step % 2 == 0
    handle = middle.register_forward_hook(interrupt if in_forward else interrupt_backward)
    with suppress(Interrupted):
        loss_of(rank, case, net, step).backward()
    handle.remove()


def deleted(rank: Rank, case: MemoryCase) -> Bytes:
    """The bytes once a net that was trained is gone, and once another one is built."""
    found: Bytes = {}
    with Tally() as tally:
        for when in ("first", "second"):
            net = spread(rank, case, case.build().to(rank.device))
            optimizer = optimizer_of(net)
            loss_of(rank, case, net, 0).backward()
            optimizer.step()
            del net, optimizer
            gc.collect()
            found[f"after the {when} is gone"] = tally.alive()
    return found


# On an accelerator.


def allocated(rank: Rank, case: MemoryCase, offload: bool = False) -> Bytes:
    """The same moments as the device's allocator counts them, beyond what it had before."""
    warm = nn.Linear(case.dim, case.dim, device=rank.device)
    warm(case.batch(0, 0).to(rank.device)).sum().backward()  # workspaces of libraries are there from now on
    del warm
    before = torch.accelerator.memory_allocated()
    options: dict[str, Any] = {}
    if offload:
        assert rank.implementation.cpu_offload_policy is not None
        options["offload_policy"] = rank.implementation.cpu_offload_policy()
    net = spread(rank, case, case.build().to("cpu" if offload else rank.device), **options)
    found = {"built": _now()}
    optimizer = optimizer_of(net)
    for step in range(2):
        loss = _peak(found, "in forward", lambda step=step: loss_of(rank, case, net, step))  # type: ignore[misc]
        found["after forward"] = _now()
        _peak(found, "in backward", loss.backward)
        found["after backward"] = _now()
        del loss
        optimizer.step()
        optimizer.zero_grad()
        found["after zero_grad"] = _now()
    return {when: bytes - before for when, bytes in found.items()}


def _now() -> int:
    torch.accelerator.synchronize()
    return torch.accelerator.memory_allocated()


def _peak(found: Bytes, when: str, act: Callable[[], Any]) -> Any:
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    done = act()
    torch.accelerator.synchronize()
    found[when] = torch.accelerator.max_memory_allocated()
    return done
