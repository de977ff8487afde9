"""Measuring what the suites catch: each faulty subject before the requirement named for it, and before a whole run.

Of one fault, for example::

    {"id": "reductions.drops_rank_zero", "named": "parity/exact", "killed": true, "killed_by": "parity/exact",
     "attributed": true, "seconds": 0.1, "examples": 1, "case": {…}, "run_seconds": 0.2, "run_rows": 0, …}

*Killed* means that a requirement said ``fail``: broken, not run and not claimed are no kills, nor is a row that torch's
own FSDP fails, nor an error (or another one than was required) where a wrong result is the fault's symptom.
*killed_by* is the first requirement to do so in a quick run on two ranks, whose rows two workers take in turn, in the
order in which the suites run; where two ranks do not show the fault, or no run was tried, the one named for it, on as
many as there are. ``seconds`` and ``examples`` are those of the named one until its first failure; ``run_seconds`` are
those of the run, once its workers work, until ``run_killed_by`` has failed, which has ``run_rows`` rows before it: None
without a run. ``others`` says which of the checks in ``other_checks.py`` miss the fault.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.records.record import Verdict
from harness.waivers.waiver import read_waivers
from harness.worlds.base import Fate
from suites.catalogue import RUN_ORDER, Entry, entries
from tests import ROOT as ROOT
from tests.mutants import Fault
from tests.mutation.judging import End, judged, subject_of
from tests.mutation.other_checks import missed_by

#: How many ranks the run has in which the first red row is looked for, and how many workers share its rows.
RANKS, WORKERS = 2, 2
#: How long a smaller failing case is looked for, in seconds.
SHRINKING = 2.0
#: Causes of a failure that are an error which was not expected, or not that one.
ERRORS = (Fate.RAISED.value, "refused otherwise")


Fact = dict[str, Any]


class FirstRed(NamedTuple):
    """The first requirement of a run that fails ("" if none does), when, and after how many rows of it.

    ``seconds`` are the run's, up to then; ``rows`` are all that were tried if none failed, and None without a run.
    """

    requirement: str
    seconds: float
    rows: int | None


NO_RUN = FirstRed("", 0.0, None)


def alone(fault: Fault) -> Fact:
    """Put one fault before the requirement named for it, and before others' checks; some seconds."""
    world = fault.worlds[0]
    named: End = judged(fault.caught_by, subject_of(fault), world, SHRINKING)
    return {
        "id": fault.id,
        "world": world,
        "verdict": str(named.verdict),
        "cause": named.cause,
        "message": named.message.partition("\n")[0][:300],
        "seconds": round(named.seconds, 3),
        "examples": named.examples,
        "case": named.case,
        "others": missed_by(subject_of(fault)) if world == "threads" else {},
        "date": date.today().isoformat(),
        "commit": _commit(),
    }


def in_a_run(first: FirstRed) -> Fact:
    """What a run says of a fault, to stand beside what it is alone."""
    return {
        "run_killed_by": first.requirement,
        "run_seconds": round(first.seconds, 2) if first.requirement else None,
        "run_rows": first.rows,
    }


def with_what_is_said(fault: Fault, fact: Fact) -> Fact:
    """What was seen, with what the library says of the fault, and whether the two agree."""
    killed_by = fact["run_killed_by"] or (fault.caught_by if fact["verdict"] == Verdict.FAIL else "")
    said = {
        "id": fault.id,
        "origin": fault.origin,
        "where": fault.where,
        "named": fault.caught_by,
        "killed": bool(killed_by),
        "killed_by": killed_by,
        "attributed": fault.is_rightly_caught_by(killed_by),
        "equivalent": bool(fault.why_equivalent),
        "why_equivalent": fault.why_equivalent,
    }
    return {**fact, **said}  # a fact that was kept may hold what the library said then


def first_red(fault: Fault, symptom: str, worker: int, is_over: Callable[[], bool]) -> FirstRed:
    """Put a fault before one worker's rows of a quick run, until something fails, or the run is over.

    An error that is not the fault's symptom, which is the cause that the requirement named for it gives, may have come
    by accident, of how the fault is made: the run goes on.
    """
    world, symptoms = fault.worlds[0], {symptom, *(ERRORS if fault.raises else ())}
    rows = list(enumerate(in_run_order(fault, world)))[worker::WORKERS]
    started = time.monotonic()
    for place, entry in rows:
        if is_over():
            break
        end = judged(entry.requirement.id, subject_of(fault), world, ranks=RANKS)
        if end.verdict is Verdict.FAIL and (end.cause not in ERRORS or end.cause in symptoms):
            return FirstRed(entry.requirement.id, time.monotonic() - started, place)
    return FirstRed("", time.monotonic() - started, len(rows))


def first_of(parts: Sequence[FirstRed]) -> FirstRed:
    """Of what the workers of one run have found: the first, or that there was nothing in all rows."""
    found = [part for part in parts if part.requirement]
    if found:
        return min(found, key=lambda part: part.seconds)
    return FirstRed("", max(part.seconds for part in parts), sum(part.rows or 0 for part in parts))


def in_run_order(fault: Fault, world: str) -> Iterator[Entry]:
    """What a run tries on this subject, but for what torch's own FSDP is known to fail."""
    judged_one = LoadedSubject(subject_of(fault), ())
    for entry in sorted(entries(), key=lambda entry: RUN_ORDER.index(entry.requirement.chapter)):
        found = entry.requirement
        possible = found.ranks <= RANKS and world in found.worlds and judged_one.why_not(found, world) is None
        if possible and found.id not in _failed_by_torch():
            yield entry


@cache
def _failed_by_torch() -> frozenset[str]:
    """Requirements of which a row is waived for torch or for gloo."""
    waivers = read_waivers(ROOT / "suites" / "waivers.toml")
    tests = {f"{Path(entry.module.replace('.', '/'))}.py::{entry.test.__name__}": entry for entry in entries()}
    rows = {tests[waiver.nodeid.partition("[")[0]].requirement.id for waiver in waivers if waiver.nodeid}
    return frozenset(rows | {waiver.requirement for waiver in waivers if waiver.requirement})


@cache
def _commit() -> str:
    """The commit that is checked out, with a + if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode
    return found.stdout.strip() + ("+" if changed else "")
