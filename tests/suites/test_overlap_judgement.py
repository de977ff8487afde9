"""Overlap is distinguished from its absence: by made-up times, and by real programs on a device that is virtual."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import partial

import pytest
import torch

from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.records.record import Verdict
from harness.vendor.load import Subject
from harness.worlds.make import open_world
from suites.communication import overlap_programs as programs
from suites.communication.overlap import OverlapCase, Times, complaint
from suites.communication.overlap_delays import Work
from tests.mutation.judging import by_id, judged
from tests.patience import GUARD
from tests.suites.virtual_time import Stream, VirtualWork, in_virtual_time, virtual_device
from tests.worlds.lockstep_runs import values

pytestmark = pytest.mark.alone

#: Six gathers of 4 ms beside 8 ms of compute each: all hidden but the first, or none.
HIDDEN = Times(collective=4.0, compute=8.0, together=8.1, quiet=49.0, delayed=53.0, made=6)
SERIAL = replace(HIDDEN, delayed=73.0)
six = partial(complaint, least=6, alone=1)
CLAIMS = "tests.suites.virtual_time:claims_streams"
SIX, SIX_AHEAD, ONE = OverlapCase(), OverlapCase(ahead=True), OverlapCase(blocks=1, collective=12)
SIX_REPLICATED = OverlapCase(world_size=4, replicas=2)


def noisy(times: Times, seed: int) -> Times:
    """Each time up to a twentieth longer or shorter."""
    drawn = random.Random(seed)
    factors = {field.name: drawn.uniform(0.95, 1.05) for field in fields(times) if field.name != "made"}
    return replace(times, **{name: getattr(times, name) * factor for name, factor in factors.items()})


def test_what_is_hidden_is_not_blamed_and_what_is_serial_is() -> None:
    """Adding one gather of six passes, adding all six does not."""
    assert six(HIDDEN) == ""
    assert "add at most 14.2 ms to 49.0 ms, got 24.0 ms more" in six(SERIAL)


def test_half_of_what_can_be_hidden_is_enough() -> None:
    """The bound lies in the middle: a ms less is right, a ms more is wrong."""
    bound = HIDDEN.quiet + HIDDEN.allowed(1)
    assert six(replace(HIDDEN, delayed=bound - 1)) == ""
    assert six(replace(HIDDEN, delayed=bound + 1)) != ""


def test_noise_of_five_percent_changes_no_verdict() -> None:
    """Neither is right blamed nor wrong let pass."""
    for seed in range(1000):
        assert six(noisy(HIDDEN, seed)) == ""
        assert six(noisy(SERIAL, seed)) != ""


def test_only_what_a_device_can_hide_is_asked_for() -> None:
    """A device that can hide half of a gather must hide half of that half."""
    slow = replace(HIDDEN, together=10.0, delayed=49.0 + 4 + 5 * 2)
    assert six(slow) == ""
    assert "add at most 19.0 ms" in six(replace(slow, delayed=73.0))


def test_a_device_that_hides_nothing_by_hand_is_told_so() -> None:
    """A backend that claims streams and has none is at fault, whatever the subject does."""
    assert "such a backend lacks 'streams'" in six(replace(HIDDEN, together=12.0))


def test_delays_that_nobody_met_prove_nothing() -> None:
    """An implementation that does not call the collectives that it is given is not fast."""
    assert "expected 6 calls or more of the collectives that were set, got 0" in six(replace(HIDDEN, made=0))


def test_one_gather_is_hidden_whole_or_not() -> None:
    """After a step there is other work for the first gather to hide behind."""
    times = Times(collective=12.0, compute=24.0, together=24.2, quiet=48.5, delayed=49.0, made=1)
    assert complaint(times, 1, 0) == ""
    assert complaint(replace(times, delayed=60.5), 1, 0) != ""


# Programs.

#: Program and case, the fewest collectives, and how many have nothing to hide behind, as in the chapter.
PASSES: dict[str, tuple[str, OverlapCase, int, int]] = {
    "overlap/forward": ("forward", SIX, 6, 1),
    "overlap/forward-ahead": ("forward", SIX_AHEAD, 6, 1),
    "overlap/backward": ("backward", SIX, 11, 2),
    "overlap/replicas": ("backward", SIX_REPLICATED, 6, 1),
    "overlap/after-step": ("after_step", ONE, 1, 0),
}
#: What each pass takes without collectives, and with them if all are hidden that can be.
BEST = {
    "overlap/forward": (48, 52),
    "overlap/forward-ahead": (48, 52),
    "overlap/backward": (96, 104),
    "overlap/replicas": (96, 100),
    "overlap/after-step": (48, 48),
}


def measured(name: str, implementation: str) -> list[Times]:
    """What ranks measure in virtual time."""
    program, case, _, _ = PASSES[name]
    with open_world("processes", case.world_size, Subject(implementation, "gloo")) as world:
        return [Times(**found) for found in values(list(world.run(in_virtual_time, case, program, deadline=GUARD)))]


def test_delays_of_gathers_and_of_reductions_share_no_memory() -> None:
    """Both are under way at once, on two streams: if both wrote to one work, the suite itself would have a race."""
    work = Work(torch.device("cpu"), rows=4)
    memory = [
        {value.data_ptr() for value in vars(one).values() if isinstance(value, torch.Tensor)}
        for one in (work, work.another())
    ]
    assert memory[0]
    assert memory[0].isdisjoint(memory[1])
    with virtual_device() as device:
        shared = VirtualWork(device, 4.0)
        for one in (shared, shared.another()):
            with device.stream(Stream(device)):
                one()
        with device.stream(Stream(device)), pytest.raises(RuntimeError, match="while another stream writes until 4 ms"):
            shared()


@pytest.mark.parametrize("name", PASSES)
def test_torch_hides_all_that_can_be(name: str) -> None:
    """With streams that run side by side torch's own FSDP needs the least time there is, and is not blamed."""
    for times in measured(name, "torch"):
        assert (times.quiet, times.delayed) == BEST[name]
        assert complaint(times, *PASSES[name][2:]) == ""


@pytest.mark.parametrize("name", PASSES)
def test_one_thing_after_the_other_is_blamed(name: str) -> None:
    """A subject in which collectives and compute take turns, or which does not hear of the event, hides nothing."""
    subject = "deaf_to_events" if name == "overlap/after-step" else "one_after_the_other"
    for times in measured(name, f"tests.suites.virtual_time:{subject}"):
        assert times.delayed == times.quiet + times.made * times.collective
        assert "add at most" in complaint(times, *PASSES[name][2:])


@pytest.mark.parametrize("name", PASSES)
def test_a_backend_that_lacks_streams_is_not_asked(name: str) -> None:
    """One that claims to have them is."""
    requirement = by_id()[name].requirement
    for backend, verdict in (("gloo", Verdict.NOT_RUN), (CLAIMS, None)):
        why = LoadedSubject(Subject("torch", backend), ()).why_not(requirement, "processes")
        assert (why and why[0]) == verdict


@pytest.mark.parametrize("name", ["overlap/forward-ahead", "overlap/backward"])
def test_a_cpu_that_claims_streams_fails(name: str) -> None:
    """By real clocks one thing comes after the other there, with FSDP and without."""
    end = judged(name, Subject("torch", CLAIMS), "processes")
    assert (end.verdict, end.cause) == (Verdict.FAIL, "disagreement")
    assert "lacks 'streams'" in end.message or "add at most" in end.message


def test_the_programs_of_the_chapter_are_those_tried_here() -> None:
    """By name."""
    assert {program for program, *_ in PASSES.values()} <= set(vars(programs))
    timed = {name for name, each in by_id().items() if each.requirement.worlds == ("processes",)}
    assert set(PASSES) == {name for name in timed if name.startswith("overlap/")}
