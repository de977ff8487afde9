"""The command that tries random mutants, ``python -m tests.mutants random``.

    --seed 1 --count 100                 100 mutants of reference_models/fsdp, first in threads, survivors in processes
    --seed 1 --count 100 --paths torch   the same of the installed torch's own
    --seed 1 --count 100 --only apply.py again, those whose id contains this
    --seed 1 --count 100 --show          try nothing, print them
    --waits --paths torch                without each statement that waits, on the simulated device

Results are appended to ``reports/random-mutants-SEED.jsonl``, ignored by git, as they come; the same command goes on
where it was interrupted, and prints the report of a seed that is done. A changed mutant is tried again.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from harness.data.kinds import WORLDS
from tests import ROOT
from tests.random_mutants.report import report
from tests.random_mutants.sampling import RandomMutant, sampled, unmutated, waits
from tests.random_mutants.trying import Try, tried

Trying = Callable[[RandomMutant, str], Awaitable[Try]]
Key = tuple[str, str, str]
WORKERS = 2


def main(arguments: Sequence[str]) -> None:
    """Try the mutants of a seed that have no result yet, and print what came of all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants random",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--waits", action="store_true", help="all that wait, one by one, on the simulated device")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--paths", nargs="+", default=["reference_models/fsdp"], help="files, folders, or torch")
    parser.add_argument("--only", metavar="TEXT", help="try again those whose id contains this, and no others")
    parser.add_argument("--show", action="store_true", help="try nothing, print the mutants")
    options = parser.parse_args(arguments)
    try:
        mutants = waits(options.paths) if options.waits else sampled(options.seed, options.count, options.paths)
    except ValueError as error:
        parser.error(f"argument --paths: {error}")
    if options.show:
        print("\n\n".join(f"{mutant.id}\n{mutant.diff}" for mutant in mutants))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # else its runs would go on
    file = ROOT / "reports" / f"random-mutants-{'waits' if options.waits else options.seed}.jsonl"
    trying = functools.partial(tried, backend="simulated") if options.waits else tried
    chosen = [mutant for mutant in mutants if options.only is None or options.only in mutant.id]
    asyncio.run(each_tried(chosen, file, {} if options.only else read(file), trying))
    print("\n".join(report(mutants, read(file))))


def read(file: Path) -> dict[Key, Try]:
    """The results of a file, the latest of each mutant in each world; without lines that were cut short."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    results = [Try(*json.loads(line)) for line in lines if line.endswith("]")]
    return {(one.id, one.diff, one.world): one for one in results}


async def each_tried(
    mutants: Sequence[RandomMutant], file: Path, known: dict[Key, Try], trying: Trying = tried
) -> None:
    """Try all in the first world, then the survivors in the next; ``known`` results are not tried again."""
    own = list({one.id: one for one in map(unmutated, mutants)}.values())
    waiting = deque((mutant, 0) for mutant in [*own, *mutants])

    async def work() -> None:
        while waiting:
            mutant, place = waiting.popleft()
            result = known.get((mutant.id, mutant.diff, WORLDS[place]))
            if result is None:
                result = await trying(mutant, WORLDS[place])
                _keep(file, result)
                how = f"{result.end} {result.by} {result.message}".strip()
                print(f"[{len(waiting)} left, {result.seconds} s] {result.id} {result.world}: {how}", flush=True)
            if result.end == "survived" and place + 1 < len(WORLDS):
                waiting.append((mutant, place + 1))

    await asyncio.gather(*(work() for _ in range(WORKERS)))


def _keep(file: Path, result: Try) -> None:
    """Append a line, after an end of line in case that the last one was cut short."""
    file.parent.mkdir(exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write("\n" + json.dumps(result, ensure_ascii=False) + "\n")
