"""What a world may leave behind: processes, open files, threads, directories. Linux only, like the tests that ask."""

from __future__ import annotations

import os
import select
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.worlds import hosts
from harness.worlds.make import open_world
from tests import programs
from tests.worlds import TORCH_ON_GLOO


def surroundings() -> dict[str, object]:
    """What must be the same after a world as before it."""
    return {
        "processes": descendants(os.getpid()),
        "open files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "directories": sorted(Path(tempfile.gettempdir()).iterdir()),
    }


def descendants(pid: int) -> set[int]:
    """All living processes below ``pid``, with the fork server's."""
    children: dict[int, set[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), set()).add(int(entry.parent.name))
    found, waiting = set(), [pid]
    while waiting:
        below = children.get(waiting.pop(), set())
        found |= below
        waiting += below
    return found


def is_gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether the process ends within ``seconds``."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for worlds that nobody else uses; and the fork server is started before anything is counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("worlds")))
        with open_world("processes", 1, TORCH_ON_GLOO) as world:
            world.run(programs.add_up)
        hosts.shutdown_pool()
        yield Path(tempfile.gettempdir())


@pytest.fixture(autouse=True)
def nothing_left_behind(temporary: Path) -> Iterator[None]:
    """After each test, and when no world is to follow: the processes, threads, open files, directories of before."""
    before = surroundings()
    yield
    hosts.shutdown_pool()
    assert surroundings() == before
