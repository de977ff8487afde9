"""Programs on ranks of the simulated device, each of which shows one thing about it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.collective_trace.torch_names import all_gather
from harness.worlds.rank import Rank

#: Numbers whose copy takes about a millisecond of virtual time.
LARGE = 125_000


def waits(rank: Rank) -> float:
    """A stream writes, the current one waits for it and reads."""
    x, side = torch.zeros(4, device=rank.device), torch.Stream(rank.device)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        x.add_(1)
    torch.accelerator.current_stream().wait_stream(side)
    return float(x.sum())


def does_not_wait(rank: Rank) -> float:
    """The same without the wait."""
    x, side = torch.zeros(4, device=rank.device), torch.Stream(rank.device)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        x.add_(1)
    return float(x.sum())


def frees_early(rank: Rank, is_recorded: bool) -> None:
    """Memory that another stream still reads is freed, and written again by its next owner."""
    side = torch.Stream(rank.device)
    x = torch.zeros(4, device=rank.device)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        y = x + 1
    if is_recorded:
        x.record_stream(side)
    del x
    torch.ones(4, device=rank.device)
    torch.accelerator.synchronize()
    y.sum()


def gathers(rank: Rank, is_awaited: bool) -> Tensor:
    """An asynchronous all-gather, and a read of what it brings."""
    own = torch.full((2,), float(rank.number), device=rank.device)
    everything = torch.empty(2 * rank.size, device=rank.device)
    work = all_gather(everything, own, async_op=True)
    if is_awaited:
        work.wait()
    read = everything * 1
    work.wait()
    return read.cpu()


def reads_too_early(rank: Rank) -> list[Tensor]:
    """What the host finds in pinned memory before and after it waits for the copy."""
    host = torch.zeros(3, pin_memory=True)
    host.copy_(torch.ones(3, device=rank.device), non_blocking=True)
    early = host.clone()
    torch.accelerator.synchronize()
    return [early, host.clone()]


def takes(rank: Rank) -> dict[str, float]:
    """Virtual milliseconds of a copy, of two on one stream, and of two on two streams."""
    x, y, z = (torch.zeros(LARGE, device=rank.device) for _ in range(3))
    side = torch.Stream(rank.device)

    def measured(*streams: Any) -> float:
        torch.accelerator.synchronize()
        here = torch.accelerator.current_stream()
        begin, end = (torch.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for target, stream in zip((y, z), streams, strict=False):
            stream.wait_event(begin)
            with stream:
                target.copy_(x)
            here.wait_stream(stream)
        end.record()
        torch.accelerator.synchronize()
        return begin.elapsed_time(end)

    here = torch.accelerator.current_stream()
    return {"one": measured(here), "two": measured(here, here), "beside": measured(here, side)}


def refuses_two_devices(rank: Rank) -> list[str]:
    """What is said where tensors of two devices, or of the CPU, come together."""
    x = torch.ones(2, device="simulated:0")
    said = []
    for other in (torch.ones(2, device="simulated:1"), torch.ones(2)):
        try:
            torch.mm(x.view(1, 2), other.view(2, 1))
        except RuntimeError as error:
            said.append(str(error))
    return said


def counts_memory(rank: Rank) -> dict[str, int]:
    """What the allocator says before, with and after two tensors of 1000 bytes."""
    torch.accelerator.reset_peak_memory_stats()
    found = {"before": torch.accelerator.memory_allocated()}
    tensors = [torch.zeros(250, device=rank.device) for _ in range(2)]
    found["with"] = torch.accelerator.memory_allocated() - found["before"]
    tensors.clear()
    found["after"] = torch.accelerator.memory_allocated() - found["before"]
    found["peak"] = torch.accelerator.max_memory_allocated() - found["before"]
    return {name: value for name, value in found.items() if name != "before"}


def draws(rank: Rank) -> list[Tensor]:
    """Random numbers of one seed, twice, and others after them."""
    torch.manual_seed(7)
    first = torch.rand(4, device=rank.device)
    then = torch.rand(4, device=rank.device)
    torch.manual_seed(7)
    return [each.cpu() for each in (first, torch.rand(4, device=rank.device), then)]


def computes(rank: Rank) -> dict[str, Any]:
    """A convolution, a dropout and a linear layer under autocast, forward and backward."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 3)).to(rank.device)
    with torch.autocast(rank.device.type, dtype=torch.bfloat16):
        output = net(torch.ones(2, 1, 4, 4, device=rank.device))
    output.float().sum().backward()
    return {"dtype": str(output.dtype), "gradients": all(p.grad is not None for p in net.parameters())}


def disagrees(rank: Rank) -> None:
    """Ranks call different collectives."""
    x = torch.ones(2, device=rank.device)
    dist.all_reduce(x) if rank.number else dist.broadcast(x, 0)


def sends(rank: Rank) -> float:
    """Each rank sends to the next before it receives from the one before."""
    own, got = torch.full((1,), float(rank.number), device=rank.device), torch.zeros(1, device=rank.device)
    sent = dist.isend(own, (rank.number + 1) % rank.size)
    dist.recv(got, (rank.number - 1) % rank.size)
    sent.wait()
    return float(got)


def two_groups(rank: Rank) -> list[float]:
    """Collectives of two groups that ranks wait for in different orders."""
    groups = [rank.group(range(rank.size), copy) for copy in (1, 2)]
    tensors = [torch.ones(1, device=rank.device) for _ in groups]
    works = [dist.all_reduce(x, group=group, async_op=True) for x, group in zip(tensors, groups, strict=True)]
    for work in works[:: -1 if rank.number else 1]:
        work.wait()
    return [float(x) for x in tensors]
