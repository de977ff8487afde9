"""How worlds start, what ranks find in them, what cannot start, and which processes are used again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.vendor.load import Subject, load_backend
from harness.worlds.base import Fate, Outcome, World, WorldCannotStart
from harness.worlds.make import open_world
from harness.worlds.workers import supervised_world
from harness.worlds.workers.supervise import CannotStart, Watch
from tests.worlds.helpers import TORCH_ON_GLOO, check_that_it_works, fates
from tests.worlds.leftovers import is_gone, nothing_left_behind, temporary  # noqa: F401
from tests.worlds.programs import basic

RETURNED = Fate.RETURNED


def test_ranks_have_processes_of_their_own() -> None:
    """Each rank is a process that leads a group, with its number, one thread, and the controller's environment."""
    os.environ["FSDP_TEST_MARKER"] = "here"
    try:
        with open_world("processes", 2, TORCH_ON_GLOO) as world:
            seen = [outcome.value for outcome in world.run(basic.shows_surroundings)]
    finally:
        del os.environ["FSDP_TEST_MARKER"]
    assert len({os.getpid(), *(view["pid"] for view in seen)}) == 3
    for rank, view in enumerate(seen):
        assert view["group"] == view["pid"]
        assert (view["RANK"], view["WORLD_SIZE"], view["marker"], view["threads"]) == (str(rank), "2", "here", 1)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_no_rank_takes_itself_for_another(kind: Any) -> None:
    """What torch caches of one rank, in another thread or when warming up, is not taken for what is true of another."""
    with open_world(kind, 4, TORCH_ON_GLOO) as world:
        assert [outcome.value for outcome in world.run(basic.own_coordinate)] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (Subject("tests.worlds.programs.basic:nothing", "gloo"), "has no 'nothing'"),
        (Subject("torch", "tests.worlds.programs.basic:without_group"), "nonsense"),
    ],
    ids=["implementation", "process group"],
)
def test_a_world_that_cannot_start_says_why(subject: Subject, words: str) -> None:
    """What keeps ranks from starting is no verdict about a requirement: the reason is first, then world and rank."""
    world = open_world("processes", 2, subject)
    name = load_backend(subject.backend).name
    with pytest.raises(
        WorldCannotStart, match=rf"^cannot start: .*{words}.*\nthe processes world of 2 ranks on {name}"
    ):
        world.run(basic.add_up)
    world.close()


def test_no_rank_runs_before_all_are_ready() -> None:
    """A rank that dies at once is the program's failure, and not a start that failed: its peers have joined by then."""
    happened: list[Any] = []

    def worker(rank: int) -> Any:
        return SimpleNamespace(ranks=(rank,), is_ready=False, clock=0.0, send=lambda *order: happened.append(order[0]))

    def messages(*_: object) -> Iterator[tuple[Any, list[Any]]]:
        for rank in (1, 0):
            yield workers[rank], ["ready", ""]
            happened.append(f"rank {rank} is ready")
        for rank in (1, 0):
            yield workers[rank], ["done", [{"rank": rank, "fate": "returned", "value": None, "at": 0.0}], ""]

    workers = [worker(0), worker(1)]
    team: Any = SimpleNamespace(workers=workers, messages=messages, spoilt="")
    assert fates(Watch(team, 1.0, 1.0, 0, str, []).run([object, object], b"")) == [RETURNED, RETURNED]
    assert happened == ["role", "role", "rank 1 is ready", "run", "run", "rank 0 is ready"]


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [
        ("processes", 0, "at least 1 rank, got 0"),
        ("processes", 10**6, "offers at most .* got 1000000"),
        ("threads", 10**6, "offers at most .* got 1000000"),
        ("magic", 2, "unknown kind of world 'magic'"),
    ],
)
def test_an_impossible_world_is_refused(kind: str, size: int, words: str) -> None:
    """A size that the backend does not offer, or an unknown kind, is the caller's fault and said at once."""
    with pytest.raises(ValueError, match=words):
        open_world(kind, size, TORCH_ON_GLOO)


def test_a_program_that_cannot_travel_is_refused() -> None:
    """A lambda cannot be found by name in a rank; the caller is told before anything starts."""
    with open_world("processes", 1, TORCH_ON_GLOO) as world, pytest.raises(ValueError, match="top of a module"):
        world.run(lambda rank: None)


def test_a_closed_world_is_not_reopened() -> None:
    """A run after ``close`` is refused."""
    world = open_world("processes", 1, TORCH_ON_GLOO)
    world.close()
    with pytest.raises(ValueError, match="closed"):
        world.run(basic.add_up)


def test_arguments_and_results_travel() -> None:
    """Tensors and trees reach the ranks and come back, also when they are larger than a pipe."""
    value = {"weights": torch.arange(1 << 18), "names": ("a", None, [1.5])}
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        for outcome in world.run(basic.echo, value):
            assert torch.equal(outcome.value.pop("weights"), value["weights"])
            assert outcome.value == {"names": ("a", None, [1.5])}


def test_a_backend_that_asks_for_spawn_is_never_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend's start method is the one used; and a machine that cannot start processes gives the reason."""

    def refuse(carried: object, backend: object, method: str, starts: object) -> None:
        raise OSError(f"no more processes, not even by {method}")

    monkeypatch.setattr(supervised_world, "Team", refuse)
    subject = Subject("torch", "tests.worlds.programs.basic:spawned")
    with open_world("processes", 1, subject) as world, pytest.raises(WorldCannotStart, match="not even by spawn"):
        world.run(basic.add_up)


def test_unsafe_forking_falls_back_to_spawning_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the fork server finds itself unsafe to fork, ranks are spawned, and the world notes why."""
    run, refusals = Watch.run, ["3 threads run after importing torch"]

    def refuse_once(self: Watch, *args: Any) -> list[Outcome]:
        if refusals:
            raise CannotStart(refusals.pop(), unsafe=True)
        return run(self, *args)

    monkeypatch.setattr(Watch, "run", refuse_once)
    monkeypatch.setattr(supervised_world, "_fork_refused", "")
    with open_world("processes", 1, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        assert "3 threads" in world.notes[0]  # type: ignore[attr-defined]


def test_a_device_that_a_backend_imports_runs_its_backward() -> None:
    """Autograd learns of devices in the first backward of a process: the fork server runs none before ranks import.

    Otherwise the first backward on a device that a plugin registers in the rank ends with an internal error of torch.
    """
    with open_world("processes", 2, Subject("torch", "tests.worlds.programs.basic:with_late_device")) as world:
        ends = world.run(basic.device_of_late_gradient)
        assert [end.value for end in ends] == ["late:0", "late:0"], ends[0].error


# Persistent backends.


def pids(world: World) -> list[int]:
    """The processes of a world's ranks."""
    return [outcome.value["pid"] for outcome in world.run(basic.shows_surroundings)]


def test_a_persistent_backend_keeps_its_processes() -> None:
    """Processes are used again by the next world of the same subject and size, with a group that works."""
    seen = []
    for _ in range(2):
        with open_world("processes", 2, TORCH_ON_GLOO) as world:
            check_that_it_works(world)
            seen.append(pids(world))
    assert seen[0] == seen[1]
    assert fates(supervised_world.shutdown_pool()) == [RETURNED, RETURNED]
    assert all(is_gone(pid) for pid in seen[0])


def test_a_failure_ends_persistent_processes() -> None:
    """After a failure no process is used again."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        first = pids(world)
        world.run(basic.raises_on_one)
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        assert not set(first) & set(pids(world))


def test_a_process_that_died_while_it_waited_is_replaced() -> None:
    """The next world has live processes, and says why they are new."""
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        first = pids(world)
    os.kill(first[1], signal.SIGKILL)
    assert is_gone(first[1])
    with open_world("processes", 2, TORCH_ON_GLOO) as world:
        assert not set(first) & set(pids(world))
        assert world.notes == ["a rank process died while it waited for its next world"]  # type: ignore[attr-defined]


def test_only_so_many_processes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that were used longest ago make room for those of other worlds."""
    monkeypatch.setattr(supervised_world, "MOST_KEPT", 3)
    seen = []
    for size in (2, 1, 1, 2):
        with open_world("processes", size, TORCH_ON_GLOO) as world:
            seen.append(pids(world))
    with open_world("threads", 2, TORCH_ON_GLOO) as world:
        pids(world)
    assert seen[1] == seen[2]
    assert seen[0] == seen[3]
    assert is_gone(seen[1][0])
    assert not is_gone(seen[0][0], seconds=0)


def test_a_program_that_leaves_traces_ends_persistent_processes() -> None:
    """A process whose default dtype a program changed is not used again, and the seed is a fresh one's."""
    found = []
    for _ in range(2):
        with open_world("processes", 1, TORCH_ON_GLOO) as world:
            found.append(world.run(basic.seeds_and_default_dtype)[0].value)
        assert "default dtype" in world.notes[0]  # type: ignore[attr-defined]
    assert found[0] == found[1]
    assert found[0][1] == "torch.float32"
