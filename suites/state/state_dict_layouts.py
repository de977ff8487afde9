"""State dicts of nets that are cut along other dims, train on, recompute, or have buffers that are not saved.

A weight of 2 × 4 on two ranks, cut along its larger dim, is entered so::

    rank 0: columns 0, 1 of both rows    rank 1: columns 2, 3 of both rows
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import Shard

from harness.worlds.rank import Rank
from suites.kit.cases import NetCase, TrainingCase
from suites.kit.programs import apply
from suites.kit.registered import Facts
from suites.kit.strategies import plans, stacks, world_sizes
from suites.oracle.layout import own, shard
from suites.state.state_dicts import described, other, prepared


@st.composite
def placed_cases(draw: st.DrawFn) -> TrainingCase:
    """Nets whose every dim the ranks divide: unequal parts along other dims than the first are not asked for."""
    size = draw(world_sizes(2))
    drawn = draw(stacks(most_blocks=2, largest=2))
    net = replace(drawn, dim=size * drawn.dim)
    return TrainingCase(size, net, draw(plans(net)), seed=draw(st.integers(0, 2**16)))


def largest(tensor: Tensor) -> int:
    """The largest dim; of equal ones, the last."""
    return max(range(tensor.dim()), key=lambda dim: (tensor.size(dim), dim))


def part(case: TrainingCase, number: int, full: Tensor) -> Tensor:
    """What rank ``number`` holds of a parameter that is cut along its largest dim."""
    return shard(full, case.world_size, number, largest(full))


def entered(case: TrainingCase, number: int, net: nn.Module) -> Facts:
    """The entries that rank ``number`` must have when the unsharded net is ``net``."""
    buffers = dict(net.named_buffers())
    return {
        name: {"is": "a plain tensor", "local": full}
        if name in buffers
        else {"is": "a DTensor", "local": part(case, number, full)}
        for name, full in net.state_dict().items()
    }


def cut(parameter: Any) -> int | None:
    """The dim that a parameter is cut along; None if it is not cut, or on more than one axis."""
    placements: Any = getattr(parameter, "placements", ())
    return getattr(placements[0], "dim", None) if len(placements) == 1 else None


def placed(rank: Rank, case: TrainingCase) -> nn.Sequential:
    """The case's net with every parameter cut along its largest dim."""
    return apply(rank, case, case.build(), shard_placement_fn=lambda parameter: Shard(largest(parameter)))


def dims_of_placed(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """The dim that each parameter's entry is cut along."""
    net = placed(rank, case)
    parameters = dict(net.named_parameters())
    return {name: cut(value) for name, value in net.state_dict().items() if name in parameters}


def load_placed(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Load other values; the entries then, and which of them moved."""
    net, full = placed(rank, case), other(case)
    before = net.state_dict()
    buffers = dict(full.named_buffers())
    fresh = {name: value.detach().clone() for name, value in before.items()}
    for name, value in full.state_dict().items():
        own(fresh[name]).copy_(value if name in buffers else part(case, rank.number, value))
    places = {name: own(value).data_ptr() for name, value in before.items()}
    net.load_state_dict(fresh)
    state = net.state_dict()
    moved = [name for name, value in state.items() if own(value).data_ptr() != places[name]]
    return {"entries": described(state), "moved": moved}


def kept_through_training(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """A state dict that was asked for before training: its entries after every step."""
    net = prepared(rank, case)
    state = net.state_dict()
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate)
    seen = []
    for step in range(case.steps):
        case.loss(net(case.inputs(step, rank.number).to(rank.device)), step, rank.number).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(described(state))
    return {"after every step": seen}


def asked_in_two_ways(rank: Rank, case: TrainingCase) -> list[dict[str, Any]]:
    """The entries by the module's own method and by ``get_model_state_dict``, before and after a forward."""
    net, found = prepared(rank, case), []
    ask = rank.implementation.state_dicts.get_model_state_dict
    for _ in range(2):
        found.append({"asked": described(net.state_dict()), "got": described(ask(net))})
        net(case.inputs(0, rank.number).to(rank.device))
        found.append({"got": described(ask(net)), "asked": described(net.state_dict())})
    return found


def with_buffers(case: NetCase) -> nn.Sequential:
    """The case's net with a buffer that is saved, and one that is not."""
    net = case.build()
    net[0].register_buffer("saved", case.numbers((3,), 7))
    net.register_buffer("passing", case.numbers((2,), 8), persistent=False)
    return net


def keys_with_buffers(rank: Rank, case: NetCase) -> list[str]:
    """The keys of the state dict."""
    return list(apply(rank, case, with_buffers(case)).state_dict())


def load_buffers(rank: Rank, case: NetCase) -> dict[str, Any]:
    """Load zeros into everything that is entered; what buffers hold before and then."""
    net = apply(rank, case, with_buffers(case))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    net.load_state_dict({name: torch.zeros_like(value) for name, value in net.state_dict().items()})
    return {"before": before, "after": {name: buffer.clone() for name, buffer in net.named_buffers()}}


def entries_under_checkpoint(rank: Rank, case: TrainingCase) -> list[Any]:
    """The entries of a net whose blocks recompute their forward, before and after training a step."""
    net = case.build()
    assert rank.implementation.checkpoint is not None
    for block in net:
        rank.implementation.checkpoint(block)
    apply(rank, case, net, reshard_after_forward=case.reshard_after_forward)
    before = described(net.state_dict())
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    return [before, described(net.state_dict())]
