"""What a world costs: ours against torch's own test worlds, on the same bodies, in one run.

    python -m benchmarks.worlds [--repeats 9] [-o docs/evidence/worlds.md]

Needs ``expecttest``, which torch's test classes import. Bodies: two training steps of a small MLP sharded as a whole
by torch's ``fully_shard`` (thread worlds); one all-reduce (process worlds). Times are of a whole test each, in
milliseconds: torch's classes make their world in each test, ours keeps its ranks through a test's examples, so both
are measured: a test of one example, and an example more. "torch's own work" is the body of one rank alone, on torch's
fake group that does not communicate, times the ranks: no world of threads, which share one interpreter, can be
faster.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.bodies import reduce_on, train, train_on
from harness.vendor.load import Subject
from harness.worlds.base import World, describe, first_cause
from harness.worlds.make import open_world
from harness.worlds.rank import Rank

SUBJECT = Subject("torch", "gloo")


class TorchThreads(MultiThreadedTestCase):
    """torch's threaded world."""

    size = 2

    @property
    def world_size(self) -> int:
        """How many ranks."""
        return self.size

    def setUp(self) -> None:
        """Start the threads."""
        super().setUp()
        self._spawn_threads()

    def test_train(self) -> None:
        """The body."""
        train(init_device_mesh("cpu", (self.size,)))


class TorchProcesses(MultiProcessTestCase):
    """torch's world of spawned processes."""

    @property
    def world_size(self) -> int:
        """How many ranks."""
        return 4

    def setUp(self) -> None:
        """Start the processes."""
        super().setUp()
        self._spawn_processes()

    def test_reduce(self) -> None:
        """The body, with a process group around it."""
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        dist.all_reduce(torch.ones(4))
        dist.destroy_process_group()


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    lines = [*_heading(options.repeats)]
    for row in _rows(options.repeats):
        print(row, flush=True)
        lines.append(row)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _heading(repeats: int) -> Iterator[str]:
    yield "# What a world costs"
    yield ""
    machine = f"{os.cpu_count()} cores ({platform.machine()})"
    yield f"torch {torch.__version__}, Python {platform.python_version()}, {machine}, gloo on CPU."
    yield f"`python -m benchmarks.worlds`: medians of {repeats}, times in milliseconds."
    yield ""
    yield (
        "| body | ranks | torch's world | ours: a test | ours: an example | torch's own work "
        "| torch ÷ test | torch ÷ example |"
    )
    yield "|---|---|---|---|---|---|---|---|"


def _rows(repeats: int) -> Iterator[str]:
    for size in (2, 4, 8):
        TorchThreads.size = size
        theirs = _median(lambda: _pass(TorchThreads("test_train")), repeats)
        own = f"{size * _alone(size, repeats):.1f}"
        yield _row("two training steps, threads", size, theirs, *_ours("threads", size, train_on, repeats), own)
    test, example = _ours("threads", 64, train_on, max(repeats // 3, 1))
    yield f"| two training steps, threads | 64 | – | {test:.0f} | {example:.0f} | – | – | – |"
    theirs = _median(lambda: _pass(TorchProcesses("test_reduce")), max(repeats // 3, 1))
    yield _row("one all-reduce, processes", 4, theirs, *_ours("processes", 4, reduce_on, repeats), "–")


def _row(body: str, size: int, theirs: float, test: float, example: float, own: str) -> str:
    figures = f"{theirs:.0f} | {test:.1f} | {example:.1f} | {own} | {theirs / test:.1f} | {theirs / example:.1f}"
    return f"| {body} | {size} | {figures} |"


def _ours(kind: str, size: int, program: Callable[[Rank], None], repeats: int) -> tuple[float, float]:
    def one_test() -> None:
        with open_world(kind, size, SUBJECT) as world:
            _run(world, program)

    test = _median(one_test, repeats)
    with open_world(kind, size, SUBJECT) as world:
        return test, _median(lambda: _run(world, program), repeats)


def _alone(size: int, repeats: int) -> float:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        mesh = init_device_mesh("cpu", (size,))
        return _median(lambda: train(mesh), repeats)
    finally:
        dist.destroy_process_group()


def _run(world: World, program: Callable[[Rank], None]) -> None:
    outcomes = world.run(program)
    assert first_cause(outcomes) is None, describe(outcomes)


def _pass(test: Any) -> None:
    result = unittest.TestResult()
    test.run(result)
    assert result.wasSuccessful(), result.errors + result.failures


def _median(call: Callable[[], None], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


if __name__ == "__main__":
    main()
