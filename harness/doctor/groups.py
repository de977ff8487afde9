"""Probes of the process group, on ranks of a world: what must hold before requirements can say anything of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.doctor.checks import Answer, answer, last_line, probe, probes_in, require
from harness.worlds.rank import Rank

#: What torch calls of a process group that is written in Python.
_NAMES = [f"{name}{form}" for name in ("all_gather_single", "reduce_scatter_single") for form in ("", "_coalesced")]
_NAMES += ["allreduce", "broadcast", "barrier", "group_name", "size", "rank"]


@probe(
    "no rank gets as far as a collective",
    "read the message and the stack; if ranks wait for their peers, check network interfaces; on a slow machine give "
    "more time with `--patience`",
)
def process_group(rank: Rank) -> str:
    """`init_process_group` makes a group of all ranks."""
    group = _everybody()
    require(group.size() == rank.size, f"the group says that it has {group.size()} ranks, not {rank.size}")
    require(group.rank() == rank.number, f"rank {rank.number} of the group says that it is {group.rank()}")
    require(bool(group.group_name), "the group has no name")
    kind = "torch's own, backend in C++" if type(group) is dist.ProcessGroup else f"in Python, {type(group).__name__}"
    return f"{rank.size} × {rank.device.type}, {kind}"


@probe(
    "FSDP calls these, and waits for a `Work` only: anything else is ignored, and numbers are read too early",
    "return a subclass of `torch.distributed.Work`; a process group written in Python overrides `all_gather_single`, "
    "`reduce_scatter_single`, their `_coalesced` forms, `group_name`, `size` and `rank`, as torch 2.13 calls them",
)
def async_work(rank: Rank) -> None:
    """all-gather, reduce-scatter and all-reduce with `async_op=True` give a `torch.distributed.Work`."""
    small, large = torch.zeros(1, device=rank.device), torch.zeros(rank.size, device=rank.device)
    try:
        made = {
            "all-gather": all_gather(large.clone(), small, async_op=True),
            "reduce-scatter": reduce_scatter(small.clone(), large, async_op=True),
            "all-reduce": dist.all_reduce(small.clone(), async_op=True),
        }
    except Exception as error:
        group = type(_everybody())
        lacking = [name for name in _NAMES if getattr(group, name, None) is getattr(dist.ProcessGroup, name, group)]
        hint = f"{group.__name__} does not override {', '.join(lacking)}; " if group is not dist.ProcessGroup else ""
        raise NotImplementedError(f"{hint}{last_line(error)}") from None
    for name, got in made.items():
        require(isinstance(got, dist.Work), f"{name} with async_op=True gives a {type(got).__name__}, no Work")
        got.wait()


def _everybody() -> Any:
    return dist.distributed_c10d._get_default_group()


PROBES = probes_in(globals())


def in_group(rank: Rank, name: str) -> Answer:
    """The program of every rank: one of ``PROBES``."""
    return answer(lambda: PROBES[name].ask(rank))
