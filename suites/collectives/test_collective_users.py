"""The floor, continued: what the tools around composable FSDP ask of a backend's process group."""

from __future__ import annotations

from functools import partial

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from suites.collectives import collective_users as users
from suites.collectives.collective_cases import Collective, CollectiveCase
from suites.kit.strategies import given
from suites.oracle.judging import finds
from suites.saving.checkpoint_strategies import directory


@requirement("collectives/barrier", ranks=2)
@example(case=CollectiveCase(3, (Collective("barrier", 0),) * 5, ((1, 2),)))
@given(case=users.barrier_cases())
def test_nobody_leaves_a_barrier_before_everybody_came(trial: Trial, case: CollectiveCase) -> None:
    """A barrier of a group, waited for at once or later, holds each rank until all ranks of the group have come."""
    with directory() as path:
        finds(trial, users.at_barriers, case, partial(users.wanted_marks, case), path)


@requirement("collectives/ring", level="should", ranks=2)
@example(case=users.RingCase(2, (0, 1), 5000))
@given(case=users.ring_cases())
def test_neighbours_send_to_each_other_at_once(trial: Trial, case: users.RingCase) -> None:
    """Ranks that all send to both neighbours before they receive have what these sent, of whatever size."""
    finds(trial, users.around, case, partial(users.wanted_around, case))


@requirement("collectives/objects", ranks=2)
@given(case=users.object_cases())
def test_objects_arrive_whole(trial: Trial, case: users.ObjectCase) -> None:
    """Objects, which ranks have in different sizes, are gathered, broadcast and scattered whole, as checkpoints do."""
    finds(trial, users.objects, case, partial(users.wanted_objects, case))


@requirement("collectives/dtensor", ranks=2)
@given(case=users.move_cases())
def test_the_moves_of_a_dtensor_bring_the_right_parts(trial: Trial, case: users.MoveCase) -> None:
    """A DTensor on the backend is spread, made whole, summed, averaged and cut another way as plain arithmetic says."""
    finds(trial, users.moves, case, partial(users.wanted_moves, case), within=users.rounded_means(case))
