"""The words that the tests of worlds share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.vendor.load import Subject
from harness.worlds.base import Fate, Outcome, World
from tests.patience import GUARD
from tests.worlds.programs import basic

TORCH_ON_GLOO = Subject("torch", "gloo")


def fates(outcomes: Sequence[Outcome]) -> list[Fate]:
    """The fates in rank order."""
    return [outcome.fate for outcome in outcomes]


def check_that_it_works(world: World) -> None:
    """A collective among all ranks gives the right numbers."""
    outcomes = world.run(basic.add_up, deadline=GUARD)
    assert fates(outcomes) == [Fate.RETURNED] * world.size
    for rank, outcome in enumerate(outcomes):
        assert outcome.value["rank"] == rank
        assert torch.equal(outcome.value["total"], torch.full((3,), world.size * (world.size + 1) / 2))
