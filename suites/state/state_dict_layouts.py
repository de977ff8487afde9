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

from harness.worlds.rank import Rank
from suites.kit.cases import NetCase, TrainingCase
from suites.kit.programs import apply, loss_of, steps
from suites.kit.registered import described
from suites.kit.strategies import plans, stacks, world_sizes
from suites.oracle.layout import local
from suites.state.state_dicts import PlacedCase, prepared


@st.composite
def placed_cases(draw: st.DrawFn) -> PlacedCase:
    """Nets whose every dim the ranks divide: unequal parts along other dims than the first are not asked for."""
    size = draw(world_sizes(2))
    drawn = draw(stacks(most_blocks=2, largest=2))
    net = replace(drawn, dim=size * drawn.dim)
    return PlacedCase(size, net, draw(plans(net)), seed=draw(st.integers(0, 2**16)))


def cut(parameter: Any) -> int | None:
    """The dim that a parameter is cut along; None if it is not cut, or on more than one axis."""
    placements: Any = getattr(parameter, "placements", ())
    return getattr(placements[0], "dim", None) if len(placements) == 1 else None


def dims_of_placed(rank: Rank, case: PlacedCase) -> dict[str, Any]:
    """The dim that each parameter's entry is cut along."""
    net = prepared(rank, case)
    parameters = dict(net.named_parameters())
    return {name: cut(value) for name, value in net.state_dict().items() if name in parameters}


def kept_through_training(rank: Rank, case: TrainingCase) -> list[dict[str, Tensor]]:
    """A state dict that was asked for before training: what it has of parameters after every step."""
    net = prepared(rank, case)
    state, buffers, seen = net.state_dict(), dict(net.named_buffers()), list[dict[str, Tensor]]()
    entries = {name: value for name, value in state.items() if name not in buffers}
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate)
    optimizer.register_step_post_hook(lambda *_: seen.append({name: local(value) for name, value in entries.items()}))
    steps(rank, case, net, optimizer=optimizer)
    return seen


def asked_in_two_ways(rank: Rank, case: TrainingCase) -> list[dict[str, Any]]:
    """The entries by the module's own method and by ``get_model_state_dict``, before and after a forward."""
    net, found = prepared(rank, case), []
    ask = rank.implementation.state_dicts.get_model_state_dict
    for _ in range(2):
        asked = described(net.state_dict())
        found.append({"asked": asked, "got": described(ask(net))})
        net(case.inputs(0, rank.number).to(rank.device))
        got = described(ask(net))
        found.append({"asked": described(net.state_dict()), "got": got})
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
    loss_of(rank, case, net).backward()
    return [before, described(net.state_dict())]
