"""A long mixed run: faults and good programs in random order, in one controller, which must end as it began.

``python -m tests.worlds.long_run [--count 2000] [--seed 0] [--workers 1]`` draws from the table of
``harness_faults.py`` and from good programs, in both kinds of world, and judges each run as the tests do. At the end
nothing may be left, and the controller may have no more files, threads or memory than after its warm-up. Several
workers run side by side, each with its share and with a seed of its own.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing.util
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.worlds.base import Fate
from harness.worlds.make import open_world
from harness.worlds.system.process_tree import adopt_orphans
from harness.worlds.workers import supervised_world
from tests.worlds.helpers import TORCH_ON_GLOO, check_that_it_works, fates
from tests.worlds.leftovers import left_behind, surroundings
from tests.worlds.programs import basic
from tests.worlds.programs.harness_faults import TABLE
from tests.worlds.programs.injecting import inject, look

KINDS = ("processes", "threads")
#: How much of the run warms up, and how much memory the controller may gain after that, in MiB.
WARM_UP = 0.1
MOST_GROWTH = 32
#: One run in so many is of a good program.
ONE_GOOD_IN = 2


@dataclass
class Tally:
    """What has been run, what was wrong, and what the controller held after the warm-up and at the end."""

    runs: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def grown(self) -> list[str]:
        """What the controller holds more of than after its warm-up; of memory, more than it may."""
        first, last = self.held[0], self.held[-1]
        allowed = {"MiB": MOST_GROWTH}
        return [
            f"{name}: {first[name]}, then {last[name]}"
            for name in first
            if last[name] > first[name] + allowed.get(name, 0)
        ]


def held() -> dict[str, int]:
    """What the controller holds now: open files, threads, memory that it uses."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "open files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "MiB": pages * resource.getpagesize() >> 20,
    }


def good(kind: str, draw: random.Random) -> list[str]:
    """Some runs in a world of a drawn size in which nothing goes wrong; in words, what did."""
    size = draw.randint(1, 4)
    try:
        with open_world(kind, size, TORCH_ON_GLOO) as world:
            for _ in range(draw.randint(1, 3)):
                check_that_it_works(world)
            value = {
                "numbers": [draw.random() for _ in range(100)],
                "not": float("inf"),
                "bytes": draw.randbytes(10_000),
            }
            if any(outcome.value != value for outcome in world.run(basic.echo, value)):
                return [f"{size} ranks did not give back what they were given"]
            left = world.close()
    except AssertionError as error:
        return [f"{size} ranks of a good program: {error}"]
    return [] if set(fates(left)) == {Fate.RETURNED} else [f"{size} good ranks left so: {left}"]


def run(count: int, seed: int) -> Tally:
    """``count`` runs drawn by ``seed``."""
    draw, tally = random.Random(seed), Tally()
    for kind in KINDS:
        look(kind)
    supervised_world.shutdown_pool()
    before, started = surroundings(), time.monotonic()
    for number in range(count):
        one(draw, tally)
        if number + 1 == max(1, round(count * WARM_UP)):
            tally.held.append(_settled())
        if (number + 1) % 50 == 0:
            seconds = time.monotonic() - started
            print(f"{number + 1} of {count}, {seconds:.0f} s, {len(tally.wrong)} wrong, holds {held()}", flush=True)
    tally.held.append(_settled())
    tally.left = left_behind(before)
    return tally


def one(draw: random.Random, tally: Tally) -> None:
    """Draw one run, do it, and count it."""
    if draw.randrange(ONE_GOOD_IN) == 0:
        kind, name = draw.choice(KINDS), "good"
        wrong = good(kind, draw)
    else:
        kind, fault = draw.choice(TABLE)
        name, wrong = str(fault), inject(kind, fault)
    tally.runs[f"{kind}: {name}"] += 1
    for words in wrong:
        tally.wrong.append(f"run {sum(tally.runs.values())}, {kind}, {name}: {words[:500]}")
        print(f"WRONG {tally.wrong[-1]}", flush=True)


def _settled() -> dict[str, int]:
    """What the controller holds when no ranks wait for their next world."""
    supervised_world.shutdown_pool()
    return held()


def report(tally: Tally, seconds: float) -> bool:
    """Print what came of it; whether all is well."""
    runs = tally.runs
    faults = {name for name in runs if not name.endswith(": good")}
    print(f"{platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores, {platform.machine()}")
    done, faulty = sum(runs.values()), sum(runs[name] for name in faults)
    print(
        f"{done} runs in {seconds:.0f} s: {faulty} of {len(faults)} faults (of {len(TABLE)}), {done - faulty} good ones"
    )
    print(f"wrong: {len(tally.wrong)}; left behind: {tally.left or 'nothing'}; grown: {tally.grown() or 'nothing'}")
    print(f"held after the warm-up {tally.held[0]}, at the end {tally.held[-1]}")
    print(*tally.wrong, sep="\n", end="")
    return not (tally.wrong or tally.left or tally.grown())


def several(count: int, seed: int, workers: int) -> bool:
    """The same in several processes side by side, each with its share."""
    shares = [count // workers + (number < count % workers) for number in range(workers)]
    command = [sys.executable, "-m", "tests.worlds.long_run", "--count"]
    started = [subprocess.Popen([*command, str(n), "--seed", str(seed + i)]) for i, n in enumerate(shares)]
    codes = [process.wait() for process in started]
    return not any(codes)


def main() -> bool:
    """Run what was asked for; whether all was well."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.worlds.long_run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=2000, help="how many runs")
    parser.add_argument("--seed", type=int, default=0, help="what decides which, and in what order")
    parser.add_argument("--workers", type=int, default=1, help="how many processes share them")
    asked = parser.parse_args()
    if asked.workers > 1:
        return several(asked.count, asked.seed, asked.workers)
    adopt_orphans()
    multiprocessing.util.get_temp_dir()  # where the fork server listens: it outlives what follows
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory
        start = time.monotonic()
        return report(run(asked.count, asked.seed), time.monotonic() - start)


if __name__ == "__main__":
    sys.exit(not main())
