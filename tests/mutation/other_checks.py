"""Simpler checks, of the shapes in common use, to compare the suites' mutation score with.

Two ranks train ``Linear(8, 16) · ReLU · Linear(16, 8)`` for ten steps, and each compares with the unsharded net::

    loss, same input        losses, Adam, both ranks have the same input
    loss, own input         losses, Adam, each rank has its own input
    loss and parameters     the same, and the whole parameters and gradients after every step, within 1e-5
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from harness.vendor.load import Subject
from harness.worlds.base import first_cause
from harness.worlds.make import open_world
from harness.worlds.rank import Rank
from tests.patience import GUARD

CHECKS = ("loss, same input", "loss, own input", "loss and parameters")
STEPS, ROWS, WIDTH = 10, 4, 8
RANKS = 2


def killed_by_checks(subject: Subject) -> str:
    """For each check ``x`` if it fails, also by an error, or ``.`` if it finds nothing wrong with a subject."""
    with open_world("threads", RANKS, subject) as world:
        return "".join(_verdict(world.run(finds_nothing, check, deadline=GUARD)) for check in CHECKS)


def _verdict(outcomes: Any) -> str:
    return "." if first_cause(outcomes) is None and all(outcome.value for outcome in outcomes) else "x"


def finds_nothing(rank: Rank, check: str) -> bool:
    """A program: whether training agrees with the unsharded net as far as ``check`` looks."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    sharded = copy.deepcopy(whole)
    for layer in (sharded[0], sharded[2], sharded):
        rank.implementation.fully_shard(layer, mesh=rank.mesh())
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in (whole, sharded)]
    for step in range(STEPS):
        inputs = [_rows(step, 0 if check == CHECKS[0] else number) for number in range(rank.size)]
        losses = [whole(one).square().mean() for one in inputs]
        torch.stack(losses).mean().backward()
        loss = sharded(inputs[rank.number]).square().mean()
        loss.backward()
        if not _close(loss, losses[rank.number]):
            return False
        gradients = check != CHECKS[2] or _alike(whole, sharded, gradients=True)
        for optimizer in optimizers:
            optimizer.step()
        parameters = check != CHECKS[2] or _alike(whole, sharded, gradients=False)
        for optimizer in optimizers:
            optimizer.zero_grad()
        if not (gradients and parameters):
            return False
    return True


def _rows(step: int, number: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 * step + number))


def _alike(whole: nn.Module, sharded: nn.Module, gradients: bool) -> bool:
    """Whether all whole tensors agree; every rank gathers all of them, whatever it finds."""
    pairs = zip(whole.parameters(), sharded.parameters(), strict=True)
    found = [(a.grad, b.grad) if gradients else (a, b) for a, b in pairs]
    alike = [a is not None and b is not None and _close(b.full_tensor(), a) for a, b in found]
    return all(alike)


def _close(got: Tensor, want: Tensor) -> bool:
    """``torch.testing.assert_close``'s tolerance for float32, ten times as wide: the order of sums differs."""
    return torch.allclose(got.detach(), want.detach(), rtol=1e-5, atol=1e-5)
