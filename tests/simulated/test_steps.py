"""The reference on a device, beside torch: exact, since time is virtual."""

from __future__ import annotations

import math

import pytest

from harness.vendor.load import Subject
from harness.worlds.make import open_world
from tests.simulated.steps import BLOCKS, parts_of_a_step
from tests.worlds.lockstep_runs import values

#: How many more kernels the reference may launch for a block, of a microsecond each.
KERNELS = 2


@pytest.mark.parametrize("mesh", [(2,), (2, 2)], ids=["shards", "replicas of shards"])
def test_the_reference_hides_as_much_communication_as_torch(mesh: tuple[int, ...]) -> None:
    """Forward, backward and optimizer take as long but for a few launches, and no more memory."""
    torch_, reference = (_measured(name, mesh) for name in ("torch", "reference"))
    for part, took in torch_.items():
        assert reference[part] <= took + (0 if part == "bytes" else KERNELS * BLOCKS), (part, reference, torch_)


def _measured(implementation: str, mesh: tuple[int, ...]) -> dict[str, float]:
    with open_world("processes", math.prod(mesh), Subject(implementation, "simulated")) as world:
        [first, *others] = values(list(world.run(parts_of_a_step, mesh)))
    assert all(other == first for other in others)
    return first
