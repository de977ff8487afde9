"""Measure one mutant: the requirement named for it alone, then a run of all requirements until the first failure.

For example, a mutant that its requirement kills after 0.1 s, and the third requirement of a run first::

    Result("reductions.drops_rank_zero", "threads", 0.1, "parity/exact", 2, "..x")

*Killed* means that a requirement said ``fail``: broken, not run and not claimed are no kills, nor is a result that
torch's own FSDP fails, nor an error (or another error) where a wrong result is the mutant's symptom, nor a TypeError or
the like where a refusal was expected: code that goes wrong breaks no requirement on what is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.trial.refusals import REFUSED_OTHERWISE
from harness.waivers.waiver import read_waivers
from harness.worlds.base import Fate
from suites.catalogue import RUN_ORDER, Entry, entries
from tests import ROOT as ROOT
from tests.mutants import Mutant
from tests.mutation.judging import judged, subject_of
from tests.mutation.other_checks import killed_by_checks

#: How many ranks the run has in which the first failure is looked for.
RANKS = 2
#: How long a smaller failing case is looked for, in seconds.
SHRINKING = 2.0
#: Causes of a failure that are an error which was not expected, or not that one.
ERRORS = (Fate.RAISED.value, REFUSED_OTHERWISE)


class Result(NamedTuple):
    """What was measured of one mutant.

    ``seconds``: until the requirement named for it failed, alone; None if it did not. ``first``: the requirement that
    failed first in a run on two ranks in fail-fast order, with ``position`` results before it; "" and None where two
    ranks do not show the defect. ``others``: for each of ``other_checks.CHECKS``, ``x`` if it kills the mutant, ``.``
    if not; "" for a mutant that only processes show.
    """

    id: str
    world: str
    seconds: float | None
    first: str
    position: int | None
    others: str

    @property
    def is_killed(self) -> bool:
        """By the requirement named for it, or in a run."""
        return self.seconds is not None or bool(self.first)


def measured(mutant: Mutant) -> tuple[Result, dict[str, Any]]:
    """The result for one mutant, and what the requirement named for it said, as JSON; some seconds."""
    world, subject = mutant.worlds[0], subject_of(mutant)
    named = judged(mutant.killed_by, subject, world, SHRINKING)
    first, position = first_failure(mutant, named.cause) or ("", None)
    others = killed_by_checks(subject) if world == "threads" else ""
    seconds = round(named.seconds, 2) if named.is_kill else None
    return Result(mutant.id, world, seconds, first, position, others), {"id": mutant.id, **asdict(named)}


def first_failure(mutant: Mutant, symptom: str) -> tuple[str, int] | None:
    """The first requirement of a run that fails, and how many results come before it.

    An error that is not the mutant's symptom (the cause of failure of the requirement named for it) may be an accident
    of how the mutant is made: the run goes on.
    """
    symptoms = {symptom, *(ERRORS if mutant.raises else ())}
    for position, entry in enumerate(in_run_order(mutant)):
        end = judged(entry.requirement.id, subject_of(mutant), mutant.worlds[0], ranks=RANKS)
        if end.is_kill and (end.cause not in ERRORS or end.cause in symptoms):
            return entry.requirement.id, position
    return None


def in_run_order(mutant: Mutant) -> Iterator[Entry]:
    """What a run on two ranks tries on this subject, except for what torch's own FSDP is known to fail."""
    world, subject = mutant.worlds[0], LoadedSubject(subject_of(mutant), ())
    for entry in sorted(entries(), key=lambda entry: RUN_ORDER.index(entry.requirement.chapter)):
        found = entry.requirement
        possible = found.ranks <= RANKS and world in found.worlds and subject.why_not(found, world) is None
        if possible and found.id not in _failed_by_torch():
            yield entry


@cache
def _failed_by_torch() -> frozenset[str]:
    """Requirements with a result that is waived for torch or for gloo, as it fails each time."""
    waivers = [waiver for waiver in read_waivers(ROOT / "suites" / "waivers.toml") if not waiver.sporadic]
    tests = {f"{Path(entry.module.replace('.', '/'))}.py::{entry.test.__name__}": entry for entry in entries()}
    by_node = {tests[waiver.nodeid.partition("[")[0]].requirement.id for waiver in waivers if waiver.nodeid}
    return frozenset(by_node | {waiver.requirement for waiver in waivers if waiver.requirement})
