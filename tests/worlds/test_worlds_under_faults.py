"""Whatever ranks do, a world says who did it, in bounded time; the next run is unharmed, and nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from harness.worlds import wire
from harness.worlds.base import Fate, Outcome
from harness.worlds.make import open_world
from harness.worlds.workers import supervised_world, team, worker
from tests import ROOT
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO, check_that_it_works, fates
from tests.worlds.leftovers import interruptible, is_gone, nothing_left_behind, temporary  # noqa: F401
from tests.worlds.programs import basic
from tests.worlds.programs.dying import waits_the_first_time
from tests.worlds.programs.hanging import deadline_when_all_hang
from tests.worlds.programs.harness_faults import FAULTS, TABLE, Fault
from tests.worlds.programs.injecting import inject, look
from tests.worlds.programs.striking import striking

RETURNED, HUNG, INTERRUPTED, CRASHED = Fate.RETURNED, Fate.HUNG, Fate.INTERRUPTED, Fate.CRASHED


@pytest.fixture(scope="module", autouse=True)
def unharmed(temporary: Path) -> None:  # noqa: F811
    """What unharmed worlds look like is known."""
    for kind in ("processes", "threads"):
        look(kind)
    supervised_world.shutdown_pool()


@pytest.mark.parametrize(("kind", "fault"), [pytest.param(kind, f, id=f"{kind}-{f}") for kind, f in TABLE])
def test_a_fault_is_told_and_the_next_run_is_unharmed(kind: str, fault: Fault) -> None:
    """Each fault gives the right fates and first cause; the same world runs again, and so does the next."""
    assert inject(kind, fault) == []


def test_the_table_is_large_and_has_both_worlds() -> None:
    """There are at least 40 faults, each in both kinds of world, unless it is said why not."""
    in_both = [fault for fault in FAULTS if ("processes", fault) in TABLE and ("threads", fault) in TABLE]
    assert len(in_both) >= 40
    assert len({str(fault) for fault in FAULTS}) == len(FAULTS)


def test_results_that_are_too_much_together_are_told_of_all_who_have_more_than_their_share() -> None:
    """A thread world's ranks share a message: what each alone might send is refused, and a small result is not."""
    ends = [Outcome(0, RETURNED, b"x" * 900), Outcome(1, RETURNED, 1.5), Outcome(2, RETURNED, b"x" * 900)]
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        worker._send_outcomes(theirs, ends, "", limit=2000)
        _, trees, _ = wire.decode(ours.recv_bytes())
    assert [(tree["fate"], tree["value"]) for tree in trees] == [
        ("unsendable", None),
        ("returned", 1.5),
        ("unsendable", None),
    ]
    assert "at most 666 bytes" in trees[0]["error"]


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_the_log_ends_with_the_last_words(kind: str) -> None:
    """Of megabytes that a failing rank and its children print, the last 4 KiB are kept."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        log = world.run(basic.prints_and_raises)[1].log
    assert log.endswith("xx\nlast words\n")
    assert len(log) == 4096


def test_a_hung_rank_shows_its_stack() -> None:
    """A rank whose time is up is shown where it was, and so are its peers."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        with deadline_when_all_hang(world, ("all_reduce", "in sleeps ")):
            victim, culprit = world.run(basic.sleeps, deadline=GUARD)
    assert "in sleeps" in culprit.traceback
    assert "in sleeps (basic.py:" in culprit.error
    assert "waiting in all_reduce" in victim.error


def test_a_segfault_shows_its_stack() -> None:
    """A rank that dies of a fatal signal leaves its Python stack."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        assert "in segfaults" in world.run(basic.segfaults)[1].traceback


@pytest.mark.parametrize("program", [basic.leaves_a_child, basic.leaves_a_child_and_returns])
def test_what_ranks_started_dies_with_them(program: Any, tmp_path: Path) -> None:
    """Processes that ranks started do not outlive their world, whether its end was good or bad."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        world.run(program, str(tmp_path))
    started = [int(note.read_text()) for note in tmp_path.iterdir()]
    assert len(started) == 2
    assert all(is_gone(pid) for pid in started)


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_expiry_from_another_thread_ends_the_run_at_once(kind: str, tmp_path: Path) -> None:
    """``expire`` ends the run in progress, not its deadline, with its reason; the next run is unharmed."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        with striking(tmp_path, lambda rank, server: world.expire("the test's time was up")):
            outcomes = world.run(waits_the_first_time, str(tmp_path), deadline=GUARD)
        assert outcomes[1].fate is HUNG
        assert "ended because the test's time was up" in outcomes[1].error
        check_that_it_works(world)


def test_expiry_between_two_runs_ends_the_next_one() -> None:
    """A time limit that strikes while no run is in progress is not lost."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        world.expire("the test's time was up")
        assert HUNG in fates(world.run(basic.sleeps, deadline=GUARD))


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_kills_the_ranks_and_is_passed_on(tmp_path: Path) -> None:
    """KeyboardInterrupt in the controller ends the ranks and reaches the caller; the world can run again."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        interrupt = striking(tmp_path, lambda rank, server: os.kill(os.getpid(), signal.SIGINT))
        with interrupt, pytest.raises(KeyboardInterrupt):
            world.run(waits_the_first_time, str(tmp_path))
        check_that_it_works(world)


def test_a_world_that_nobody_closed_goes_with_its_last_reference() -> None:
    """Dropping a world without closing it leaves nothing behind either."""
    world = open_world("processes", 2, TORCH_ON_GLOO)
    check_that_it_works(world)
    del world


CONTROLLER = """
import multiprocessing.forkserver
import os
import sys
from harness.vendor.load import Subject
from harness.worlds.make import open_world
from tests.worlds.programs import basic
if __name__ == "__main__":
    worlds = [open_world(kind, 2, Subject("torch", "gloo")) for kind in ("threads", "processes")]
    ranks = {o.value["pid"] for world in worlds for o in world.run(basic.shows_surroundings)}
    print(multiprocessing.forkserver._forkserver._forkserver_pid, *ranks, flush=True)
    if sys.argv[1] == "hang":
        worlds[1].run(basic.spins)
"""


@contextmanager
def controller(directory: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A controller of its own, its fork server, and its ranks; they must be gone when it is, and their files, too."""
    script = directory / "controller.py"
    script.write_text(CONTROLLER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory)}
    with subprocess.Popen([sys.executable, script, *words], stdout=subprocess.PIPE, text=True, env=environment) as ours:
        assert ours.stdout is not None
        pids = [int(word) for word in ours.stdout.readline().split()]
        yield ours, pids
    assert pids
    assert all(is_gone(pid) for pid in pids)
    kept = {"controller.py", "torchinductor_root"}  # torch's own cache may be there
    assert {path.name for path in directory.iterdir()} <= kept


def test_ranks_do_not_outlive_a_controller_that_is_killed(tmp_path: Path) -> None:
    """Ranks die with a controller that a signal ends in the middle of a run, and nothing of them stays on disk."""
    with controller(tmp_path, "hang") as (ours, _):
        ours.kill()
        assert ours.wait(GUARD) == -signal.SIGKILL


def test_ranks_do_not_outlive_a_controller_that_forgot_to_close(tmp_path: Path) -> None:
    """Ranks and their files go with a controller that ends without closing its worlds."""
    with controller(tmp_path, "forget") as (ours, _):
        assert ours.wait(GUARD) == 0


def test_a_controller_that_was_stopped_still_takes_what_came_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that returned while the controller was stopped did not hang, even if it wakes after their deadline."""

    def wakes_late(heard: list[Any], seconds: float) -> list[Any]:
        """Says after the deadline what it saw before it was stopped: nothing; though somebody has spoken since."""
        return wait(heard, 0) if seconds == 0 else wait(heard) and []

    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        monkeypatch.setattr(team, "wait", wakes_late)
        assert fates(world.run(basic.add_up)) == [RETURNED, RETURNED]
