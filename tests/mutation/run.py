"""The command that measures mutants and writes ``docs/mutation-results.tsv`` and what is made from it.

    python -m tests.mutants                        all of them, hours on two cores
    python -m tests.mutants --missing              those that the file does not have
    python -m tests.mutants --only reductions      those whose id contains this
    python -m tests.mutants --write                measure nothing, make the page and the badge again

Results are written as they come, so an interrupted measurement loses nothing. What the requirement named for each
mutant said (verdict, cause, message, smallest failing case) is appended to ``reports/mutants.jsonl``, ignored by git.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.util
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import torch

from harness.pytest_plugin.options import register_profiles
from harness.records.output import replace_file
from harness.vendor.load import Subject
from harness.worlds.workers.fork_server import preload_programs
from harness.worlds.workers.supervised_world import shutdown_pool
from suites.catalogue import chapter_modules
from tests.mutants import Mutant, all_mutants
from tests.mutation.measure import ROOT, Result, measured
from tests.mutation.other_checks import CHECKS, killed_by_checks
from tests.mutation.page import badge, page

RESULTS = ROOT / "docs" / "mutation-results.tsv"
DETAILS = ROOT / "reports" / "mutants.jsonl"
WORKERS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the mutants that are asked for, and write the results, the page and the badge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose id contains this")
    parser.add_argument("--missing", action="store_true", help="only mutants that the file does not have")
    parser.add_argument("--write", action="store_true", help="measure nothing, make the page and the badge again")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # else its workers would go on
    mutants, results = all_mutants(), {result.id: result for result in read(RESULTS)}
    chosen = [one for one in mutants if options.only in one.id and not (options.missing and one.id in results)]
    for result in each_measured([] if options.write else chosen):
        results[result.id] = result
        write(RESULTS, results, mutants)
    write(RESULTS, results, mutants)
    for path, text in made_from(read(RESULTS), mutants).items():
        path.write_text(text, encoding="utf-8")


def made_from(results: Sequence[Result], mutants: Sequence[Mutant]) -> dict[Path, str]:
    """The files made from the results, by path."""
    badge_path = RESULTS.parent / "pictures" / "mutation-score.svg"
    return {RESULTS.with_suffix(".md"): "\n".join(page(results, mutants)) + "\n", badge_path: badge(results, mutants)}


def read(path: Path) -> list[Result]:
    """The results of a file: a line each, its fields between tabs, ``-`` for what there is not."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []
    return [_result(*line.split("\t")) for line in lines]


def _result(id: str, world: str, seconds: str, first: str, position: str, others: str) -> Result:
    number, place = (None if cell == "-" else float(cell) for cell in (seconds, position))
    return Result(id, world, number, first.strip("-"), None if place is None else int(place), others.strip("-"))


def write(path: Path, results: dict[str, Result], mutants: Sequence[Mutant]) -> None:
    """Write the results of mutants that exist, in their order."""
    kept = [results[mutant.id] for mutant in mutants if mutant.id in results]
    rows = [Result._fields, *(["-" if cell in (None, "") else str(cell) for cell in result] for result in kept)]
    replace_file(path, "".join("\t".join(row) + "\n" for row in rows).encode(), str(path))


def each_measured(mutants: Sequence[Mutant]) -> Iterator[Result]:
    """The result of each mutant as it comes, in random order; prints progress and keeps the details."""
    start = time.monotonic()
    with _workers() as pool:
        waiting = [pool.submit(measured, mutant) for mutant in random.Random(0).sample(mutants, len(mutants))]
        for number, done in enumerate(as_completed(waiting), 1):
            result, details = done.result()
            keep(details)
            killer = f"{result.first}, after {result.position} results" if result.first else "no requirement"
            passed = f"{time.monotonic() - start:.0f} s"
            print(f"[{number}/{len(mutants)}, {passed}] {result.id} is first killed by {killer}", flush=True)
            yield result


def keep(details: dict[str, object]) -> None:
    """Append one line of JSON to the details."""
    DETAILS.parent.mkdir(exist_ok=True)
    with DETAILS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(details, ensure_ascii=False) + "\n")


@contextmanager
def _workers() -> Iterator[ProcessPoolExecutor]:
    """The processes that measure mutants. They start when they have something to do."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=_prepare) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)  # else an interrupted measurement would first do the rest


def _prepare() -> None:
    """In a worker: as the pytest plugin does."""
    register_profiles()  # before requirements are imported: how many cases they draw is settled then
    # A process of a pool runs no exit handlers, and waits for its children first: ranks kept warm for the next world.
    multiprocessing.util.Finalize(None, shutdown_pool, exitpriority=10)
    torch.set_num_threads(1)
    preload_programs(chapter_modules())
    killed = killed_by_checks(Subject("torch", "gloo"))  # starts what ranks are forked from, before any time is taken
    assert killed == "." * len(CHECKS), f"torch's own FSDP fails other checks: {killed}"
