"""The kill table's command: faults in, ``docs/detection.json`` and what is made of it out.

    python -m tests.mutants                        all of them, hours on two cores
    python -m tests.mutants --missing              those that the file says nothing of yet, or nothing of a run
    python -m tests.mutants --alone                before the requirement named for each alone: some minutes
    python -m tests.mutants --only reductions      those whose id has this in it
    python -m tests.mutants --write                nothing is measured; the table is made again of the file

What has been measured is kept as it comes, so that a run that is stopped loses nothing. Made of the file are the table,
``docs/detection.md``, and its pictures.
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
from typing import TYPE_CHECKING, TypeAlias

import torch

from harness.pytest_plugin.options import register_profiles
from harness.records.output import replace_file
from harness.vendor.load import Subject
from harness.worlds.workers.start import preload_programs
from harness.worlds.workers.supervised_world import shutdown_pool
from suites.catalogue import chapter_modules
from tests.mutants import Fault, all_faults
from tests.mutation.measure import (
    NO_RUN,
    ROOT,
    WORKERS,
    Fact,
    FirstRed,
    alone,
    first_of,
    first_red,
    in_a_run,
    with_what_is_said,
)
from tests.mutation.other_checks import missed_by
from tests.mutation.plot import badge, plot
from tests.mutation.table import table

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

FACTS = ROOT / "docs" / "detection.json"
PAGE = ROOT / "docs" / "detection.md"
PICTURES = ROOT / "docs" / "pictures"
Flag: TypeAlias = "Synchronized[int]"
#: In a worker: whether the run is over, since one of its workers has found something.
_shared: list[Flag] = []


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose id has this in it")
    parser.add_argument("--missing", action="store_true", help="only what the file does not have")
    parser.add_argument("--alone", action="store_true", help="only the requirement named for each fault, and no run")
    parser.add_argument("--write", action="store_true", help="measure nothing, make the table again")
    parser.add_argument("--facts", type=Path, default=FACTS, help="the JSON file (default: docs/detection.json)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # else its workers would go on
    faults = all_faults()
    kept = read(options.facts)
    chosen = [] if options.write else [fault for fault in faults if options.only in fault.id]
    if options.missing:
        known = {id for id, fact in kept.items() if options.alone or fact["run_rows"] is not None}
        chosen = [fault for fault in chosen if fault.id not in known]
    with _workers() as (pool, over):
        to_do = [fault for fault in chosen if not (options.missing and fault.id in kept)]
        for fact in each_alone(pool, to_do):
            kept[fact["id"]] = {**kept.get(fact["id"], in_a_run(NO_RUN)), **fact}
            write(options.facts, kept, faults)
        for id, first in each_in_a_run(pool, over, [] if options.alone else chosen, kept):
            kept[id].update(in_a_run(first))
            write(options.facts, kept, faults)
    write(options.facts, kept, faults)
    if options.facts == FACTS:
        for path, text in made_of(list(read(FACTS).values()), len(faults)).items():
            path.write_text(text, encoding="utf-8")


def made_of(facts: Sequence[Fact], library: int) -> dict[Path, str]:
    """The files that are made of the facts, by path; ``library`` is how many faults there are."""
    page = "\n".join(table(facts, library)) + "\n"
    return {PAGE: page, PICTURES / "detection.svg": plot(facts), PICTURES / "detection-badge.svg": badge(facts)}


def read(path: Path) -> dict[str, Fact]:
    """What has been measured so far, by id."""
    if not path.exists():
        return {}
    return {fact["id"]: fact for fact in json.loads(path.read_text(encoding="utf-8"))["faults"]}


def write(path: Path, kept: dict[str, Fact], faults: Sequence[Fault]) -> None:
    """Keep what is known of faults that are still there, in their order; whole, or as before."""
    facts = [with_what_is_said(fault, kept[fault.id]) for fault in faults if fault.id in kept]
    text = json.dumps({"schema": 1, "faults": facts}, indent=1, ensure_ascii=False) + "\n"
    replace_file(path, text.encode(), "--facts")


@contextmanager
def _workers() -> Iterator[tuple[ProcessPoolExecutor, Flag]]:
    """The processes that try faults, and what they share. They start when they have something to do."""
    context = multiprocessing.get_context("spawn")
    over = context.Value("b", False)
    with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=_prepare, initargs=(over,)) as pool:
        try:
            yield pool, over
        finally:
            pool.shutdown(cancel_futures=True)  # else who is stopped would first do the rest


def each_alone(pool: ProcessPoolExecutor, faults: Sequence[Fault]) -> Iterator[Fact]:
    """What each fault is to the requirement named for it, as it comes; says how far it is."""
    start = time.monotonic()
    for number, row in enumerate(as_completed([pool.submit(alone, fault) for fault in faults]), 1):
        fact = row.result()
        _say(number, len(faults), start, f"{fact['id']}: {fact['verdict']} after {fact['seconds']} s")
        yield fact


def each_in_a_run(
    pool: ProcessPoolExecutor, over: Flag, faults: Sequence[Fault], known: dict[str, Fact]
) -> Iterator[tuple[str, FirstRed]]:
    """What finds each fault first in a run of two workers, one run after the other; says how far it is."""
    start = time.monotonic()
    shuffled = random.Random(0).sample(faults, len(faults))  # what is there when all is stopped is a fair part
    for number, fault in enumerate(shuffled, 1):
        over.value = False
        parts = [pool.submit(_part, fault, known[fault.id]["cause"], worker) for worker in range(WORKERS)]
        first = first_of([part.result() for part in parts])
        end = f"{first.requirement or 'not red'} after {first.seconds:.1f} s, {first.rows} rows"
        _say(number, len(faults), start, f"{fault.id}: {end}")
        yield fault.id, first


def _say(number: int, of: int, start: float, words: str) -> None:
    print(f"[{number}/{of}, {time.monotonic() - start:.0f} s] {words}", flush=True)


def _part(fault: Fault, symptom: str, worker: int) -> FirstRed:
    """One worker's part of a run; ends the other's when it has found something."""
    over = _shared[0]
    found = first_red(fault, symptom, worker, lambda: bool(over.value))
    if found.requirement:
        over.value = True
    return found


def _prepare(over: Flag) -> None:
    """In a worker: as the pytest plugin does."""
    _shared.append(over)
    register_profiles()  # before requirements are imported: how many cases they draw is settled then
    # A process of a pool runs no exit handlers, and waits for its children first: ranks kept warm for the next world.
    multiprocessing.util.Finalize(None, shutdown_pool, exitpriority=10)
    torch.set_num_threads(1)
    preload_programs(chapter_modules())
    missed = missed_by(Subject("torch", "gloo"))  # starts what ranks are forked from, before any time is taken
    assert all(missed.values()), f"torch's own FSDP is blamed: {missed}"
