"""Whatever ranks do, a world says who did it, in bounded time; the next run is unharmed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.worlds import hosts
from harness.worlds.base import Fate, first_cause
from harness.worlds.make import open_world
from tests import programs
from tests.leftovers import is_gone, nothing_left_behind, temporary  # noqa: F401
from tests.worlds import TORCH_ON_GLOO, check_that_it_works, fates

DEADLINE = 1.0
RETURNED, RAISED, HUNG, INTERRUPTED = Fate.RETURNED, Fate.RAISED, Fate.HUNG, Fate.INTERRUPTED
CRASHED, EXITED = Fate.CRASHED, Fate.EXITED


@dataclass(frozen=True)
class Fault:
    """A program, the fates of ranks 0 and 1 in the process world, and in the thread world where they differ."""

    program: Any
    fates: tuple[Fate, Fate]
    words: str
    in_threads: tuple[Fate, Fate] | None = None
    words_in_threads: str | None = None
    slow: bool = False

    def expected(self, kind: str) -> tuple[tuple[Fate, Fate], str]:
        """The fates, and words of the first cause, in a world of ``kind``."""
        if kind == "processes":
            return self.fates, self.words
        return self.in_threads or self.fates, self.words_in_threads or self.words


FAULTS = [
    Fault(programs.raises_on_one, (INTERRUPTED, RAISED), "MemoryError: out of memory"),
    Fault(programs.raises_on_all, (RAISED, RAISED), "MemoryError: out of memory"),
    Fault(programs.sleeps, (INTERRUPTED, HUNG), "still running after its deadline of 1 s", slow=True),
    Fault(programs.spins, (INTERRUPTED, HUNG), "still running after its deadline of 1 s", slow=True),
    Fault(programs.holds_the_interpreter, (INTERRUPTED, HUNG), "still running after its deadline of 1 s", slow=True),
    Fault(
        programs.meets_alone, (RETURNED, Fate.MISMATCHED), "rank 0 returned without calling it",
        (RETURNED, Fate.DEADLOCKED), "all_reduce", slow=True,
    ),
    Fault(
        programs.calls_another_collective, (Fate.MISMATCHED, Fate.MISMATCHED), "rank 1 called barrier", slow=True,
    ),
    Fault(programs.exits_with_0, (INTERRUPTED, EXITED), "exit code 0 before its result"),
    Fault(programs.exits_with_3, (INTERRUPTED, CRASHED), "exit code 3"),
    Fault(programs.calls_sys_exit, (INTERRUPTED, RAISED), "SystemExit"),
    Fault(programs.is_killed, (INTERRUPTED, CRASHED), "killed by SIGKILL"),
    Fault(programs.segfaults, (INTERRUPTED, CRASHED), "killed by SIGSEGV"),
    Fault(programs.skips, (INTERRUPTED, RAISED), "Skipped: not today"),
    Fault(programs.returns_an_object, (RETURNED, Fate.UNSENDABLE), r"\['values'\]\[1\] is a builtins.object"),
    Fault(programs.raises_the_unspeakable, (INTERRUPTED, RAISED), "Unspeakable: .*cannot be shown"),
    Fault(programs.prints_and_raises, (INTERRUPTED, RAISED), "MemoryError: out of memory"),
    Fault(
        programs.writes_nonsense_to_every_pipe, (INTERRUPTED, CRASHED), "something else than its result",
        (CRASHED, CRASHED),
    ),
]  # fmt: skip
TABLE = [pytest.param(kind, f, id=f"{kind}-{f.program.__name__}") for kind in ("processes", "threads") for f in FAULTS]


@pytest.mark.parametrize(("kind", "fault"), TABLE)
def test_a_fault_is_told_and_the_next_run_is_unharmed(kind: str, fault: Fault) -> None:
    """Each fault of rank 1 gives the right fates and first cause, in time; then the same world runs again."""
    expected, words = fault.expected(kind)
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        start = time.monotonic()
        outcomes = world.run(fault.program, deadline=DEADLINE)
        elapsed = time.monotonic() - start
        assert fates(outcomes) == list(expected), outcomes
        first = first_cause(outcomes)
        assert first is not None
        assert first.rank == programs.FAULTY or expected[0] is expected[1]
        assert pytest.RaisesExc(Exception, match=words).matches(Exception(first.error)), first
        assert elapsed < (DEADLINE + 2 if fault.slow else 1.5)
        check_that_it_works(world)
    assert fates(world.close()) == [RETURNED, RETURNED]


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_the_log_ends_with_the_last_words(kind: str) -> None:
    """Of megabytes that a failing rank and its children print, the last 4 KiB are kept."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        log = world.run(programs.prints_and_raises)[1].log
    assert log.endswith("xx\nlast words\n")
    assert len(log) == 4096


@pytest.mark.parametrize("program", [programs.sleeps, programs.spins])
def test_a_hung_rank_shows_its_stack(program: Any) -> None:
    """A rank whose time is up is shown where it was, and so are its peers."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        victim, culprit = world.run(program, deadline=DEADLINE)
    assert f"in {program.__name__}" in culprit.traceback
    assert f"in {program.__name__} (programs.py:" in culprit.error
    assert "waiting in all_reduce" in victim.error


def test_a_segfault_shows_its_stack() -> None:
    """A rank that dies of a fatal signal leaves its Python stack."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        assert "in segfaults" in world.run(programs.segfaults)[1].traceback


@pytest.mark.parametrize("program", [programs.leaves_a_child, programs.leaves_a_child_and_returns])
def test_what_ranks_started_dies_with_them(program: Any, tmp_path: Path) -> None:
    """Processes that ranks started do not outlive their world, whether its end was good or bad."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        world.run(program, str(tmp_path))
    started = [int(note.read_text()) for note in tmp_path.iterdir()]
    assert len(started) == 2
    assert all(is_gone(pid) for pid in started)


def test_an_abort_while_leaving_is_told() -> None:
    """A rank that returned and then aborts in its exit handlers did not leave cleanly."""
    world = open_world("processes", 2, TORCH_ON_GLOO)
    assert fates(world.run(programs.aborts_at_exit)) == [RETURNED, RETURNED]
    outcomes = world.close()
    assert fates(outcomes) == [RETURNED, CRASHED]
    assert outcomes[1].error == "killed by SIGABRT while leaving"


def test_a_rank_that_never_leaves_is_told_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that hangs in its exit handlers is given a bounded time."""
    monkeypatch.setattr(hosts, "LEAVE_SECONDS", 0.5)
    world = open_world("processes", 2, TORCH_ON_GLOO)
    world.run(programs.never_leaves)
    outcomes = world.close()
    assert fates(outcomes) == [RETURNED, HUNG]
    assert "did not leave within 0.5 s" in outcomes[1].error


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_expiry_from_another_thread_ends_the_run_at_once(kind: str) -> None:
    """``expire`` ends the run in progress long before its deadline, with its reason; the next run is unharmed."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        timer = threading.Timer(0.3, world.expire, ["the test's time was up"])
        timer.start()
        start = time.monotonic()
        outcomes = world.run(programs.sleeps, deadline=60)
        assert time.monotonic() - start < 3
        timer.join()
        assert fates(outcomes) == [INTERRUPTED, HUNG]
        assert "ended because the test's time was up" in outcomes[1].error
        check_that_it_works(world)


def test_expiry_between_two_runs_ends_the_next_one() -> None:
    """A time limit that strikes while no run is in progress is not lost."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        world.expire("the test's time was up")
        assert HUNG in fates(world.run(programs.sleeps, deadline=60))


def test_ctrl_c_kills_the_ranks_and_is_passed_on() -> None:
    """KeyboardInterrupt in the controller ends the ranks and reaches the caller; the world can run again."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            world.run(programs.sleeps)
        timer.join()
        check_that_it_works(world)


def test_a_world_that_nobody_closed_goes_with_its_last_reference() -> None:
    """Dropping a world without closing it leaves nothing behind either."""
    world = open_world("processes", 2, TORCH_ON_GLOO)
    check_that_it_works(world)
    del world


CONTROLLER = """
import sys
from harness.load import Subject
from harness.worlds.make import open_world
from tests import programs
if __name__ == "__main__":
    world = open_world("processes", 2, Subject("torch", "gloo"))
    print(*(o.value["pid"] for o in world.run(programs.shows_surroundings)), flush=True)
    if sys.argv[1] == "hang":
        world.run(programs.spins)
"""


@pytest.mark.parametrize("end", ["hang", "forget"])
def test_ranks_do_not_outlive_the_controller(end: str, tmp_path: Path) -> None:
    """Ranks die with a controller that is killed in the middle of a run, and with one that forgot to close."""
    script = tmp_path / "controller.py"
    script.write_text(CONTROLLER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, script, end], stdout=subprocess.PIPE, text=True, env=environment) as started:
        assert started.stdout is not None
        pids = [int(word) for word in started.stdout.readline().split()]
        if end == "hang":
            started.kill()
        assert started.wait(30) == (-signal.SIGKILL if end == "hang" else 0)
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)
