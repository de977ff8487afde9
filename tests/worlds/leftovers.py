"""What a world may leave behind: processes, open files, threads, files. Linux only, like the tests that ask."""

from __future__ import annotations

import os
import re
import select
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.worlds.make import open_world
from harness.worlds.system.process_tree import adopt_orphans
from harness.worlds.system.run_directory import folder
from harness.worlds.workers import supervised_world
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO
from tests.worlds.programs import basic


def surroundings() -> Counter[str]:
    """Of what a world may leave behind, all that there is now."""
    below = descendants(os.getpid())
    return Counter(
        [
            *(f"process {_name(pid)}" for pid in below),
            *(f"open file {_without_numbers(name)}" for name in _open_files()),
            *(f"thread {_without_numbers(thread.name)}" for thread in threading.enumerate()),
            *(f"directory {path}" for path in (*folder().iterdir(), *Path(tempfile.gettempdir()).iterdir())),
            *(f"shared memory {name}" for name in _shared_memory(below)),
            f"working directory {os.getcwd()}",
        ]
    )


def _open_files() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of this very look
            yield os.readlink(link)


def _shared_memory(below: set[int]) -> Iterator[str]:
    """What torch has made, with the maker's process in its name, but for that of processes that are not ours."""
    for name in os.listdir("/dev/shm"):
        maker = re.match(r"torch_(\d+)_", name)
        if maker and (int(maker[1]) in below or not Path(f"/proc/{maker[1]}").exists()):
            yield name


def left_behind(before: Counter[str], seconds: float = GUARD) -> list[str]:
    """What was not there before, and does not go within ``seconds``: processes that are about to end do."""
    until = time.monotonic() + seconds
    left = surroundings() - before
    while left and time.monotonic() < until:
        time.sleep(0.02)  # the end of a process that is not ours cannot be waited for
        left &= surroundings() - before
    return sorted(left.elements())


def _name(pid: int) -> str:
    """What a process runs; the fork server may have been replaced by another since."""
    try:
        return _without_numbers(Path(f"/proc/{pid}/cmdline").read_text())  # files that it was given have numbers
    except OSError:
        return ""  # it has ended just now


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "N", name)


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


def is_gone(pid: int, seconds: float = GUARD) -> bool:
    """Whether the process ends within ``seconds``."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts this process and those that it starts, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for worlds that nobody else uses; and the fork server is started before anything is counted.

    Whatever leaves its parent from now on is adopted by this process, and so does not escape notice.
    """
    adopt_orphans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("worlds")))
        with open_world("processes", 1, TORCH_ON_GLOO) as world:
            world.run(basic.add_up)
        supervised_world.shutdown_pool()
        yield Path(tempfile.gettempdir())


@pytest.fixture(autouse=True)
def nothing_left_behind(temporary: Path) -> Iterator[None]:
    """After each test, and when no world is to follow: the processes, threads, open files, directories of before."""
    before = surroundings()
    yield
    supervised_world.shutdown_pool()
    left = left_behind(before)
    assert not left, left
