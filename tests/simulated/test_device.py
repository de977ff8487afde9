"""The simulated accelerator: virtual time, races, memory, random numbers, and its process group."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from harness.vendor.load import Subject
from harness.worlds.base import Fate, Outcome, Program
from harness.worlds.make import open_world
from tests import ROOT
from tests.patience import GUARD
from tests.simulated import programs

ON_DEVICE = Subject("torch", "simulated")


def outcomes_of(program: Program, *args: Any, kind: str = "processes", size: int = 2) -> tuple[Outcome, ...]:
    """What becomes of each rank."""
    with open_world(kind, size, ON_DEVICE, deadline=GUARD) as world:
        return world.run(program, *args)


def values_of(program: Program, *args: Any, kind: str = "processes", size: int = 2) -> list[Any]:
    """What a program returns on each rank."""
    outcomes = outcomes_of(program, *args, kind=kind, size=size)
    assert all(outcome.fate is Fate.RETURNED for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_stream_that_waits_is_no_race(kind: str) -> None:
    """What another stream has written may be read after a wait."""
    assert values_of(programs.waits, kind=kind) == [4.0, 4.0]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_missing_wait_is_a_race_that_names_both_sides(kind: str) -> None:
    """A race fails the program, and says who did what on which stream, in which line, and what is missing."""
    first = outcomes_of(programs.does_not_wait, kind=kind)[0]
    assert first.fate is Fate.FAULTY
    assert "aten::sum" in first.error
    assert "reads memory" in first.error
    assert "writes" in first.error
    assert "tests/simulated/programs.py" in first.error
    assert "in does_not_wait" in first.error
    assert "record an event on stream 1 of device 0" in first.error
    assert "have the default stream" in first.error


def test_the_same_program_has_the_same_races() -> None:
    """Races depend on what was launched, not on how fast anything ran."""
    said = {outcomes_of(programs.does_not_wait, size=1)[0].error for _ in range(3)}
    assert len(said) == 1


def test_times_and_streams_do_not_depend_on_what_ran_before() -> None:
    """Streams and times of a program do not depend on other programs in the same process."""
    with open_world("threads", 1, ON_DEVICE, deadline=GUARD) as world:
        values = [world.run(program)[0] for program in (programs.takes, programs.waits, programs.takes)]
    assert values[0].value == values[2].value


def test_memory_that_is_freed_too_early_is_a_race_of_its_next_owner() -> None:
    """Unless ``record_stream`` has let the allocator know that another stream uses it."""
    assert "keep the memory until then" in outcomes_of(programs.frees_early, False, size=1)[0].error
    values_of(programs.frees_early, True, size=1)


def test_a_collective_has_to_be_waited_for() -> None:
    """Its output may be read after ``Work.wait``, and is a race before."""
    for value in values_of(programs.gathers, True):
        assert value.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert "all_gather" in outcomes_of(programs.gathers, False)[0].error


def test_pinned_memory_holds_nothing_before_the_host_has_waited() -> None:
    """A copy to pinned memory that was not waited for is NaN."""
    [early, late] = values_of(programs.reads_too_early, size=1)[0]
    assert early.isnan().all()
    assert torch.equal(late, torch.ones(3))


def test_streams_work_side_by_side_in_virtual_time() -> None:
    """A copy of a megabyte takes a millisecond and a microsecond; two take twice as long, unless on two streams."""
    [times] = values_of(programs.takes, size=1)
    assert times == {"one": pytest.approx(1.001), "two": pytest.approx(2.002), "beside": pytest.approx(1.001)}


def test_a_device_that_was_chosen_is_that_of_tensors_without_memory() -> None:
    """DTensor works out sizes on fake tensors, and torch keeps their devices: they are on the chosen device at once."""
    lines = (
        "import torch",
        "from harness.simulated import device",
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "device.set_device(1)",
        "with FakeTensorMode():",
        "    print(torch.empty(2, device=device.NAME).device)",
    )
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=ROOT)
    assert ended.stdout == "simulated:1\n", ended.stderr


def test_tensors_of_two_devices_are_refused_in_a_sentence() -> None:
    """An operator has tensors of one device, and says which ones it was given."""
    [[two, cpu]] = values_of(programs.refuses_two_devices, size=1)
    assert "expected tensors of one device" in two
    assert "device 0 and of device 1" in two
    assert "cpu" in cpu


def test_the_allocator_counts_what_it_gave_out() -> None:
    """In blocks of 512 bytes, now and at most."""
    [counts] = values_of(programs.counts_memory, size=1)
    assert counts == {"with": 2048, "after": 0, "peak": 2048}


def test_random_numbers_follow_from_the_seed() -> None:
    """The same seed gives the same numbers, and the next ones are others."""
    [[first, again, then]] = values_of(programs.draws, size=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, then)


def test_layers_compute_forward_and_backward_under_autocast() -> None:
    """Convolutions, dropout and matrices work, in the dtype that autocast asks for."""
    assert values_of(programs.computes, size=1) == [{"dtype": "torch.bfloat16", "gradients": True}]


def test_ranks_that_disagree_are_named() -> None:
    """The group says which rank called what."""
    words = [outcome.error for outcome in outcomes_of(programs.disagrees)]
    assert any("rank 0 called broadcast" in each and "rank 1 called all_reduce" in each for each in words)


@pytest.mark.parametrize("program", [programs.sends, programs.two_groups])
def test_no_rank_waits_for_what_it_sends(program: Program) -> None:
    """Ranks that all send first, or wait for two groups in different orders, do not block each other."""
    want = {programs.sends: [1.0, 0.0], programs.two_groups: [[2.0, 2.0]] * 2}
    assert values_of(program) == want[program]
