"""Results that keep devices busy and the CPU idle, on as many ranks as those of the suites. Run by ``devices.py``."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from harness.data.case import Case
from harness.requirement import requirement
from harness.trial import Trial
from harness.worlds.rank import Rank

#: Of the suites' cases, as many in a hundred as here in ten.
RANKS = (2, 2, 4, 2, 1, 2, 3, 2, 2, 4)
#: How long each takes in virtual time, in microseconds.
LENGTH = 600.0


@dataclass(frozen=True)
class Busy(Case):
    """So many ranks."""

    world_size: int = 2


def work(rank: Rank, case: Busy) -> bool:
    """Keep the first rank's device busy, on which threads are all."""
    if rank.number == 0:
        torch.ops.simulated.charge(torch.accelerator.current_device_index(), "kernel", [], [], LENGTH)
    return True


@pytest.mark.parametrize("number", range(50))
@requirement("benchmark/busy")
def test_devices_are_busy_for_a_while(trial: Trial, number: int) -> None:
    """Devices are busy for a while."""
    trial.holds(all(trial.run(work, Busy(RANKS[number % len(RANKS)]))), "ranks return")
