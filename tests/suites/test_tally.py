"""The tally counts the memory behind what a rank made, once, as long as there is any, and no other rank's."""

from __future__ import annotations

import torch
import torch.distributed as dist

from harness.worlds.make import open_world
from harness.worlds.rank import Rank
from suites.lifetimes.tally import Tally
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO
from tests.worlds.lockstep_runs import values


def test_memory_is_counted_once_and_as_long_as_it_is_there() -> None:
    """Views and what is written in place count once; what is freed, or emptied though referred to, not at all."""
    before = torch.ones(100)
    with Tally() as tally:
        one, other = torch.ones(4), torch.zeros(2)
        view = one[1:].add_(before[:3])
        assert tally.alive() == 24
        del one
        assert tally.alive() == 24
        other.untyped_storage().resize_(0)
        assert tally.alive() == 16
        del view
        assert tally.alive() == 0


def test_the_peak_is_since_it_was_last_asked() -> None:
    """What was made and is gone shows in the first peak, and not in the next."""
    with Tally() as tally:
        torch.ones(1000)
        assert tally.peak() >= 4000
        assert tally.peak() == 0


def test_what_backward_makes_is_counted() -> None:
    """A gradient of 16 bytes is there after backward."""
    with Tally() as tally:
        leaf = torch.ones(4, requires_grad=True)
        (leaf * 2).sum().backward()
        assert tally.alive() == 32


def a_sum_of_four_kilobytes(rank: Rank) -> list[int]:
    """What this rank has made, and at most had, after an all-reduce."""
    with Tally() as tally:
        part = torch.ones(1000)
        dist.all_reduce(part)
        return [tally.alive(), tally.peak()]


def test_ranks_count_their_own_memory_in_either_world() -> None:
    """What a world's process group does to add up belongs to no subject, and what it writes is its owner's."""
    for kind in ("threads", "processes"):
        with open_world(kind, 2, TORCH_ON_GLOO) as world:
            assert values(list(world.run(a_sum_of_four_kilobytes, deadline=GUARD))) == [[4000, 4000]] * 2
