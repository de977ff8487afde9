"""Devices that processes share: who has which, for how long, and what ranks see of it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.vendor.load import Subject, load_backend
from harness.worlds import devices
from harness.worlds.base import Fate
from harness.worlds.devices import DeviceLock, Lease, block, leased, most_processes, share
from harness.worlds.make import open_world
from tests import ROOT
from tests.patience import GUARD
from tests.pipes import heard, named_pipe
from tests.worlds.helpers import fates
from tests.worlds.programs import shared_devices
from tests.worlds.programs.shared_devices import FOLDER, VISIBLE

SHARED = Subject("torch", "tests.worlds.programs.shared_devices:backend")
SPAWNED = Subject("torch", "tests.worlds.programs.shared_devices:spawned")
#: Another process of the run: its ranks are on devices 0 and 1, and never return.
OTHER = f"""
import sys
from pathlib import Path
from harness.vendor.load import Subject
from harness.worlds.devices import share
from harness.worlds.make import open_world
from tests.worlds.programs.shared_devices import says_so_and_waits

share(Path(sys.argv[1]), 0, 2)
open_world("processes", 2, Subject("torch", sys.argv[3])).run(says_so_and_waits, sys.argv[2], deadline={GUARD})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is the second of two that share 8 devices, by files in this folder."""
    monkeypatch.setattr(devices, "_share", None)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    share(tmp_path / "locks", 1, 2)
    return tmp_path / "locks"


def is_taken(folder: Path, device: int) -> bool:
    """Whether a process has the device."""
    lock = DeviceLock(folder, device)
    try:
        fcntl.flock(lock.file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    lock.give_back()
    return False


# Which devices.


@pytest.mark.parametrize("count", range(1, 10))
def test_a_world_is_on_as_many_devices_as_it_has_ranks(count: int) -> None:
    """On all where there are fewer; and processes are on different ones, as far as there are blocks of that size."""
    for processes in range(1, 10):
        blocks = [block(number, processes, count, 8) for number in range(processes)]
        assert all(len(each) == min(count, 8) and set(each) <= set(range(8)) for each in blocks)
        if 8 % count == 0 and 8 % processes == 0:
            assert len(set(blocks)) == min(processes, 8 // count)


def test_a_process_in_the_place_of_another_has_devices_too() -> None:
    """Its number is above those of the first ones."""
    assert block(5, 4, 2, 8) == block(1, 4, 2, 8) == range(2, 4)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_ranks_call_their_devices_by_their_own_numbers(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever their world is, rank 1 is on device 1; and all devices are there, by the names that the user gave."""
    monkeypatch.setenv(VISIBLE, "a,b,c,d,e,f,g,h")
    with open_world(kind, 2, SHARED) as world:
        found = [outcome.value for outcome in world.run(shared_devices.places, deadline=GUARD)]
    of_processes = [["simulated:0", "e", 8], ["simulated:1", "f", 8]]
    assert [list(one) for one in found] == (of_processes if kind == "processes" else [["simulated", "e", 8]] * 2)


def test_where_nothing_is_shared_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without other processes, or where each has devices of its own, ranks are where they always were."""
    shared, own = (load_backend(name) for name in (SHARED.backend, "simulated"))
    monkeypatch.setattr(devices, "_share", None)
    assert leased(shared, 2).backend is shared
    monkeypatch.setattr(devices, "_share", devices._Share(Path(), 0, 2, {}))
    assert leased(own, 2).backend is own


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        ({}, 5),
        ({"ranks": 1}, 1),
        ({"visible_devices": ""}, 1),
        ({"own_devices": True}, None),
        ({"device_type": "cpu"}, None),
    ],
)
def test_a_process_for_two_devices_and_one_more_have_a_use_for_them(changed: dict[str, Any], most: int | None) -> None:
    """One, where devices cannot be leased; any number, where there is nothing to share."""
    assert most_processes(replace(load_backend(SHARED.backend), **changed)) == most


def test_a_backend_that_sets_the_variable_itself_is_refused() -> None:
    """It would put the worlds of all processes on the same devices."""
    with pytest.raises(ValueError, match=f"environment sets {VISIBLE}, by which workers lease devices"):
        load_backend("tests.worlds.programs.shared_devices:fixed")


# For how long.


def test_a_world_has_its_devices_while_its_ranks_run(folder: Path) -> None:
    """Those of its ranks and no others; between its runs others may have them, though its ranks live on."""
    with open_world("processes", 2, SHARED) as world, named_pipe(folder.parent / "pipe") as pipe:
        for _ in range(2):
            assert not any(is_taken(folder, device) for device in range(8))
            outcomes = world.run(shared_devices.adds_up, deadline=GUARD)
            assert [outcome.value for outcome in outcomes] == [2.0, 2.0]
        with subprocess.Popen(other(folder, SHARED), cwd=ROOT) as process:
            heard(pipe)
            assert [device for device in range(8) if is_taken(folder, device)] == [0, 1]
            process.kill()


def other(folder: Path, subject: Subject) -> list[str]:
    """The command of ``OTHER``."""
    return [sys.executable, "-c", OTHER, str(folder), str(folder.parent / "pipe"), subject.backend]


@pytest.mark.parametrize("subject", [SHARED, SPAWNED], ids=["forked", "spawned"])
def test_a_killed_process_gives_its_devices_back(folder: Path, subject: Subject) -> None:
    """Not before its ranks are gone, too, which close the locks after all other files: the next is alone on each."""
    with named_pipe(folder.parent / "pipe") as pipe, subprocess.Popen(other(folder, subject), cwd=ROOT) as process:
        files = Path(f"/proc/{heard(pipe)}/fd")
        last = sorted(files.iterdir(), key=lambda file: int(file.name))[-2:]
        assert [os.readlink(file) for file in last] == [str(folder / f"device-{device}") for device in range(2)]
        process.kill()
        with open_world("processes", 8, SHARED) as world:
            outcomes = world.run(shared_devices.adds_up, deadline=GUARD)
    assert fates(outcomes) == [Fate.RETURNED] * 8, outcomes


def test_a_device_that_two_processes_use_is_found(folder: Path) -> None:
    """What these tests rely on: a world that uses a device which is in use fails."""
    (folder.parent / "5").touch()
    with open(folder.parent / "5") as file, open_world("processes", 2, SHARED) as world:
        fcntl.flock(file, fcntl.LOCK_EX)
        outcomes = world.run(shared_devices.adds_up, deadline=GUARD)
    assert fates(outcomes) == [Fate.RETURNED, Fate.FAULTY]
    assert outcomes[1].error == "two processes use one device"


def test_who_waits_for_a_device_is_the_next_to_have_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that had it last does not get ahead, so that a world which needs many devices has them some day."""
    last, waiting = DeviceLock(folder, 0), DeviceLock(folder, 0)
    last.take()
    refusing = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, how: refusing(file, how | fcntl.LOCK_NB))
    with monkeypatch.context() as while_it_waits:
        while_it_waits.setattr(waiting, "file", None)
        fcntl.flock(waiting._turn, fcntl.LOCK_EX)
    last.give_back()
    with pytest.raises(BlockingIOError):
        last.take()
    fcntl.flock(waiting._turn, fcntl.LOCK_UN)
    last.take()


def test_a_lease_that_is_interrupted_keeps_nothing(folder: Path) -> None:
    """As by Ctrl-C while it waits for the second of its devices."""

    class Interrupted(DeviceLock):
        def take(self) -> None:
            raise KeyboardInterrupt

    lease = Lease(load_backend(SHARED.backend), (DeviceLock(folder, 0), Interrupted(folder, 1)))
    with pytest.raises(KeyboardInterrupt), lease:
        pass
    assert not is_taken(folder, 0)


def test_time_stands_still_while_a_process_waits_for_devices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither limits nor budgets of a test count it."""
    now = [1000.0]

    class Slow(DeviceLock):
        def take(self) -> None:
            now[0] += 60.0

    monkeypatch.setattr(devices.time, "monotonic", lambda: now[0])
    before = devices.clock()
    with Lease(load_backend(SHARED.backend), (Slow(folder, 0),)):
        now[0] += 1.0
    assert devices.clock() - before == 1.0
