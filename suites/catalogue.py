"""Every requirement of the suites as one list, and the two tables of it in the docs.

python -m suites.catalogue requirements > docs/requirements.md
python -m suites.catalogue seeds reports/torch.jsonl reports/reference.jsonl > docs/evidence/seed-coverage.md
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import suites
from harness.data.kinds import WORLDS
from harness.data.text import unique
from harness.records.reader import Run, read_run
from harness.records.record import Record, Verdict
from harness.requirement import Requirement
from suites.seeds import SEEDS

_LIFE = """
collectives arguments refusals sharding grouping registration meta lazy-init entry parity generated passes autograd
partial-groups reshard prefetch communication events memory overlap stress reduction accumulation precision offload
parameters clipping hsdp tensor-parallel parameter-mesh spmd-mesh extensions replicate checkpoint composition
state-dict optimizer-state distributed-checkpoint state-matrix scripts interactions
"""
#: The chapters in the order of a model's life.
CHAPTERS = tuple(_LIFE.split())
#: Those in which most of what can go wrong shows, and those whose rows take several times as long as others'.
TELLING = ("parity", "entry", "generated", "scripts")
LONG = ("partial-groups", "prefetch", "events", "composition", "tensor-parallel", "memory")
#: The order in which a run judges them: so it is red as soon as may be.
RUN_ORDER = (*TELLING, *(chapter for chapter in CHAPTERS if chapter not in (*TELLING, *LONG)), *LONG)


@dataclass(frozen=True)
class Entry:
    """A requirement, its test, and the module that it stands in."""

    requirement: Requirement
    test: Callable[..., None]
    module: str

    @property
    def statement(self) -> str:
        """What is required, in one sentence."""
        return " ".join((self.test.__doc__ or "").split())


def chapter_modules() -> list[str]:
    """The modules of all chapters, such as ``suites.training.test_offload``."""
    names = (found.name for found in pkgutil.walk_packages(suites.__path__, "suites."))
    return sorted(name for name in names if name.rpartition(".")[2].startswith("test_"))


@cache
def entries() -> tuple[Entry, ...]:
    """All of them, by chapter, and as they stand there."""
    found = [entry for name in chapter_modules() for entry in entries_of(name)]
    return tuple(sorted(found, key=lambda entry: CHAPTERS.index(entry.requirement.chapter)))


def entries_of(module: str) -> Iterator[Entry]:
    """Those of one module, as they stand there."""
    for test in vars(importlib.import_module(module)).values():
        for mark in getattr(test, "pytestmark", ()):
            if mark.name == "requirement":
                yield Entry(mark.args[0], test, module)


# The table of requirements.


def requirements() -> Iterator[str]:
    """Lines of Markdown: a table a chapter."""
    levels = [entry.requirement.level for entry in entries()]
    counts = ", ".join(f"{levels.count(level)} {level.upper()}" for level in ("must", "should", "may"))
    yield "# Requirements"
    yield ""
    yield f"{len(levels)} requirements: {counts}. Made by `python -m suites.catalogue requirements`."
    yield ""
    yield (
        "*Needs* are the features an implementation must claim, how many ranks a world must have at least, what the "
        "machine must not lack, and the kind of world if only one will do. *Source* names the rows of "
        "[the seed documents](evidence/seed-coverage.md) that the requirement covers."
    )
    yield ""
    yield (
        "[Your own model](vendors.md#your-own-model) is judged by six more, which are not counted here: they are about "
        "a model, whichever a run names, and no run of the suites has them."
    )
    yield ""
    yield f"Chapters: {' · '.join(f'[{chapter}](#{chapter})' for chapter in CHAPTERS)}."
    for chapter, members in groupby(entries(), lambda entry: entry.requirement.chapter):
        found = list(members)
        yield from ("", f"## {chapter}", "", f"In {', '.join(unique(map(_link, found)))}.", "")
        yield from ("| id | level | statement | needs | source |", "|---|---|---|---|---|")
        for entry in found:
            needed, source = _needs(entry.requirement), entry.requirement.source
            cells = (f"`{entry.requirement.id}`", entry.requirement.level, _cell(entry.statement), needed, source)
            yield f"| {' | '.join(cells)} |"


def _link(entry: Entry) -> str:
    file = f"{entry.module.replace('.', '/')}.py"
    return f"[`{file}`](../{file})"


def _needs(found: Requirement) -> str:
    words = [str(feature) for feature in found.features]
    words += [f"{found.ranks} ranks"] if found.ranks > 1 else []
    words += found.limits
    words += [f"{found.worlds[0]} only"] if len(found.worlds) < len(WORLDS) else []
    return ", ".join(words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# The table of seed rows.


def by_seed() -> dict[str, list[Requirement]]:
    """The requirements that come from each seed row."""
    found: dict[str, list[Requirement]] = {row: [] for row in SEEDS}
    for entry in entries():
        for row in set(re.findall(r"(?<![\w-])[A-E]\d+\b", entry.requirement.source)) & set(SEEDS):
            found[row].append(entry.requirement)
    return found


def seeds(runs: Sequence[Run]) -> Iterator[str]:
    """Lines of Markdown: a row a seed row, a column a run."""
    yield "# Seed rows"
    yield ""
    yield "Made by `python -m suites.catalogue seeds RECORDS…` from a run of each implementation in both worlds."
    yield ""
    names = [run.header.implementation if run.header else "?" for run in runs]
    yield f"| {' | '.join(('row', 'what', 'requirement ids', *names))} |"
    yield "|---" * (3 + len(names)) + "|"
    for row, members in by_seed().items():
        ids = ", ".join(f"`{member.id}`" for member in members)
        verdicts = (_verdicts(run.records, {member.id for member in members}) for run in runs)
        yield f"| {row} | {SEEDS[row]} | {ids} | {' | '.join(verdicts)} |"


def _verdicts(records: Iterable[Record], ids: set[str]) -> str:
    found = [record for record in records if record.requirement in ids]
    return "; ".join(_verdict(world, [r for r in found if r.world == world]) for world in WORLDS)


def _verdict(world: str, records: Sequence[Record]) -> str:
    if not records:
        return f"{world}: not there"
    if all(record.verdict is Verdict.PASS for record in records):
        return f"{world}: pass"
    others = [f"`{r.requirement}` {r.verdict}" for r in records if r.verdict is not Verdict.PASS]
    return f"{world}: {len(records) - len(others)} pass, {', '.join(others)}"


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest="table", required=True)
    tables.add_parser("requirements", help="every requirement, by chapter")
    of_seeds = tables.add_parser("seeds", help="every seed row, with verdicts from record files")
    of_seeds.add_argument("records", nargs="+", help="a record file a run")
    options = parser.parse_args()
    lines = requirements() if options.table == "requirements" else seeds([read_run(path) for path in options.records])
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
