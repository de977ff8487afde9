"""A small suite for devices that workers share, of which two requirements fail. Run by ``test_shared_devices.py``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from harness.data.case import Case
from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from tests.plugin.samples import implementation as implementation
from tests.simulated import programs
from tests.worlds.programs import shared_devices


@dataclass(frozen=True)
class Sized(Case):
    """So many ranks."""

    world_size: int = 2


def adds_up(rank: Rank, case: Sized) -> float:
    """Add one over all ranks."""
    return shared_devices.adds_up(rank)


def does_not_wait(rank: Rank, case: Sized) -> Any:
    """The last rank reads what another stream writes."""
    return programs.does_not_wait(rank) if rank.number == rank.size - 1 else programs.waits(rank)


def kills(rank: Rank, case: Sized, victim: int) -> None:
    """Rank 0 kills the process that runs this test."""
    shared_devices.kills(rank, victim)


def names_its_device(rank: Rank, case: Sized) -> str:
    """What the rank calls its device."""
    return str(rank.device)


@requirement("devices/two", Feature.FULLY_SHARD)
def test_two_ranks_add_up(trial: Trial) -> None:
    """Two ranks add up to two."""
    trial.agree("all", trial.run(adds_up, Sized()), [2.0] * 2)


@requirement("devices/three", Feature.FULLY_SHARD)
def test_three_ranks_add_up(trial: Trial) -> None:
    """Three ranks add up to three."""
    trial.agree("all", trial.run(adds_up, Sized(3)), [3.0] * 3)


@requirement("devices/all", Feature.FULLY_SHARD)
def test_eight_ranks_add_up(trial: Trial) -> None:
    """Eight ranks, one for each device, add up to eight."""
    trial.agree("all", trial.run(adds_up, Sized(8)), [8.0] * 8)


@requirement("devices/drawn", Feature.FULLY_SHARD)
@example(case=Sized(4))
@example(case=Sized(1))
@given(case=st.builds(Sized, st.integers(1, 8)))
def test_any_number_of_ranks_adds_up(trial: Trial, case: Sized) -> None:
    """Ranks add up to how many they are."""
    trial.agree("all", trial.run(adds_up, case), [float(case.world_size)] * case.world_size)


@requirement("devices/races", Feature.FULLY_SHARD)
@given(case=st.builds(Sized, st.integers(2, 4)))
def test_the_last_rank_does_not_race(trial: Trial, case: Sized) -> None:
    """The last rank waits for what it reads, which is wrong."""
    trial.agree("all", trial.run(does_not_wait, case), [4.0] * case.world_size)


@requirement("devices/named", Feature.FULLY_SHARD)
def test_devices_have_no_names(trial: Trial) -> None:
    """Devices have no names, which is wrong, so the record has them."""
    names = trial.run(names_its_device, Sized(4))
    trial.holds(not any(names), f"ranks call their devices {', '.join(names)}")


@requirement("devices/killed", Feature.FULLY_SHARD, worlds=("processes",))
def test_does_not_end(trial: Trial) -> None:
    """The process that runs this test lives on, which is wrong."""
    trial.run(kills, Sized(), os.getpid())
