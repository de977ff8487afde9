"""What ends or stops our own processes from outside is told and its run repeated; the subject is never blamed."""

from __future__ import annotations

import os
import signal
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.base import Disturbed, Fate, World
from harness.worlds.make import open_world
from harness.worlds.system.disturbances import fork_server
from harness.worlds.workers import supervised_world
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO, check_that_it_works, fates
from tests.worlds.leftovers import is_gone, nothing_left_behind, temporary  # noqa: F401
from tests.worlds.programs import basic
from tests.worlds.programs.dying import waits_the_first_time
from tests.worlds.programs.striking import killing, stop, stop_the_rank, stopping, striking

KINDS = ("processes", "threads")
BOTH = [Fate.RETURNED, Fate.RETURNED]
#: How it died is not known where another one has replaced it already.
KILLED = r"^the fork server died( \(killed by SIGKILL\))?: the 2 ranks are started again, and their run is repeated$"


def server() -> int:
    """The fork server of this process."""
    found = fork_server()
    assert found is not None
    return found


def kill_between_runs(*worlds: World) -> None:
    """Kill the fork server when ranks have run, and see it and the ranks die."""
    ranks = [outcome.value["pid"] for world in worlds for outcome in world.run(basic.shows_surroundings)]
    kill(ranks)


def kill(ranks: list[int]) -> None:
    """Kill the fork server, and see these ranks die with it."""
    os.kill(server(), signal.SIGKILL)
    assert all(is_gone(pid) for pid in ranks)


@pytest.mark.parametrize("kind", ["processes", "threads"])
@pytest.mark.parametrize(
    ("strike", "words"),
    [
        (killing, KILLED),
        (stopping, "^a signal stopped (rank 1|the process of ranks 0 to 1): the 2 ranks are started again"),
    ],
    ids=["kills the fork server", "stops a rank"],
)
def test_a_run_that_is_disturbed_once_is_repeated(kind: str, strike: Any, words: str, tmp_path: Path) -> None:
    """A fork server that is killed, or a rank that is stopped, while ranks run costs a warning and a second run."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world, strike(tmp_path):
        with pytest.warns(RuntimeWarning, match=words):
            ends = world.run(waits_the_first_time, str(tmp_path), deadline=GUARD)
        assert fates(ends) == BOTH, ends


def test_a_fork_server_that_is_killed_between_runs_spoils_none() -> None:
    """The next run of the same world is that of new ranks, with a warning."""
    with open_world("processes", 2, TORCH_ON_GLOO) as processes, open_world("threads", 2, TORCH_ON_GLOO) as threads:
        kill_between_runs(processes, threads)
        for world in (processes, threads):
            with pytest.warns(RuntimeWarning, match=KILLED):
                check_that_it_works(world)


def test_a_world_whose_fork_server_is_gone_is_closed_without_blame() -> None:
    """Ranks that can no longer be asked to leave are not judged: neither of an open world nor of one to follow."""
    kept = []
    for kind in KINDS:
        with open_world(kind, 2, TORCH_ON_GLOO) as world:
            kept += [outcome.value["pid"] for outcome in world.run(basic.shows_surroundings)]
    with open_world("processes", 1, TORCH_ON_GLOO) as processes, open_world("threads", 1, TORCH_ON_GLOO) as threads:
        kill_between_runs(processes, threads)
        assert all(is_gone(pid) for pid in kept)
        assert fates(processes.close()) == fates(threads.close()) == [Fate.RETURNED]
    assert set(fates(supervised_world.shutdown_pool())) == {Fate.RETURNED}
    for kind in KINDS:
        with open_world(kind, 2, TORCH_ON_GLOO) as world:
            check_that_it_works(world)


def test_ranks_that_died_while_they_waited_for_a_world_are_replaced() -> None:
    """The next world has others, without a warning: no run was disturbed."""
    kept = []
    for kind in KINDS:
        with open_world(kind, 2, TORCH_ON_GLOO) as world:
            kept += [outcome.value["pid"] for outcome in world.run(basic.shows_surroundings)]
    kill(kept)
    for kind in KINDS:
        with open_world(kind, 2, TORCH_ON_GLOO) as world:
            check_that_it_works(world)


def test_a_fork_server_that_is_stopped_is_replaced() -> None:
    """It could start no rank and would block the run: it is ended, with a warning, and another one starts the ranks."""
    stop(server())
    with (
        open_world("processes", 2, TORCH_ON_GLOO) as world,
        pytest.warns(RuntimeWarning, match="^a signal stopped the fork server, which was then ended: the 2 ranks"),
    ):
        check_that_it_works(world)


def test_a_fork_server_that_dies_while_ranks_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is killed after it was asked for a process costs a warning; if the next one is, too, an error."""
    send, left = reduction.sendfds, [1]

    def killing(*given: Any) -> None:
        if left[0]:
            left[0] -= 1
            os.kill(server(), signal.SIGKILL)
        send(*given)

    monkeypatch.setattr(reduction, "sendfds", killing)
    with (
        open_world("processes", 2, TORCH_ON_GLOO) as world,
        pytest.warns(RuntimeWarning, match="while it was starting"),
    ):
        check_that_it_works(world)
    supervised_world.shutdown_pool()
    left[0] = 2
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        with (
            pytest.warns(RuntimeWarning),
            pytest.raises(Disturbed, match="when the ranks were started again: the fork server died"),
        ):
            world.run(basic.add_up)
        check_that_it_works(world)


def test_time_that_is_up_while_a_run_is_repeated_is_not_the_subject_s(tmp_path: Path) -> None:
    """A test's time limit that passes when ranks have been stopped says nothing about the subject either."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:

        def stop_and_expire(rank: int, server: int) -> None:
            stop_the_rank(rank, server)
            world.expire("the test's time was up")

        words = r"a signal stopped rank 1.*the test's time was up"
        with striking(tmp_path, stop_and_expire), pytest.warns(RuntimeWarning), pytest.raises(Disturbed, match=words):
            world.run(waits_the_first_time, str(tmp_path))
        check_that_it_works(world)
