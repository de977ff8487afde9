"""Judge one requirement on one subject outside pytest: its own test, in real worlds, by the harness' own rules.

    judged("parity/exact", Subject("tests.mutants.numbers.reductions:sums_for_averages", "gloo"), "threads")
    End(verdict=fail, message="rank 0: …", cause="disagreement", seconds=0.1, examples=1, …)

The Hypothesis profile in force determines how many cases are drawn.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from harness.data.case import Case
from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.records.record import Verdict
from harness.trial import Trial
from harness.trial.refusals import RAISED_INSTEAD
from harness.trial.shrinking import Shrinking
from harness.trial.verdict import attempt, verdict_of
from harness.vendor.load import Subject, load_backend
from suites.catalogue import Entry, entries
from tests.mutants import Mutant


@cache
def by_id() -> dict[str, Entry]:
    """Every requirement. A function, since the number of cases each draws is fixed when it is first called."""
    return {entry.requirement.id: entry for entry in entries()}


@dataclass(frozen=True)
class End:
    """How one requirement ended on one subject.

    ``seconds`` and ``examples`` are until the first failure, if there was one, and to the end otherwise; ``case`` is
    the smallest that failed.
    """

    verdict: Verdict
    message: str
    cause: str
    seconds: float
    examples: int = 0
    case: dict[str, Any] | None = None

    @property
    def is_kill(self) -> bool:
        """Whether it failed, and not by an accident where a refusal was expected: that is no word on the refusal."""
        return self.verdict is Verdict.FAIL and self.cause != RAISED_INSTEAD


def judged(requirement: str | Entry, subject: Subject, world: str, shrinking: float = 0.0, ranks: int = 0) -> End:
    """Judge one requirement on one subject; a parametrized one in all its forms, until the first that fails.

    ``shrinking`` is how many seconds a smaller failing case is looked for; ``ranks`` how many the world has, by default
    as many as the backend offers.
    """
    entry = by_id()[requirement] if isinstance(requirement, str) else requirement
    backend = load_backend(subject.backend)
    ranks = ranks or (backend.thread_ranks if world == "threads" else backend.ranks)
    ends: list[End] = []
    for form in forms(entry.test):
        ends.append(_one(entry, form, Trial(world, subject, ranks, shrinking=Shrinking(shrinking))))
        if ends[-1].verdict.is_red:
            break
    return replace(ends[-1], seconds=sum(end.seconds for end in ends), examples=sum(end.examples for end in ends))


def forms(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The arguments that ``pytest.mark.parametrize`` would give, besides the trial."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for chosen in itertools.product(*(_axis(*mark.args) for mark in marks)):
        yield {name: value for part in chosen for name, value in part.items()}


def _axis(names: str | Sequence[str], values: Sequence[Any]) -> list[dict[str, Any]]:
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    tuples = [one.values if hasattr(one, "marks") else one if len(names) > 1 else (one,) for one in values]
    return [dict(zip(names, one, strict=True)) for one in tuples]


def _one(entry: Entry, form: dict[str, Any], trial: Trial) -> End:
    started = time.monotonic()
    extra = {"world_kind": trial.kind} if "world_kind" in inspect.signature(entry.test).parameters else {}
    error = attempt(lambda trial: entry.test(trial=trial, **extra, **form), trial)
    at, examples = trial.shrinking.first_failure or (time.monotonic(), trial.facts.examples)
    drawn = trial.facts.case
    case = drawn.as_json() if error is not None and isinstance(drawn, Case) else None
    return End(*verdict_of(error, trial), at - started, examples, case)


def subject_of(mutant: Mutant) -> Subject:
    """The mutant, with torch's implementation or a backend beside it: gloo, or simulated devices if that needs one."""
    if mutant.kind == "backend":
        return Subject("torch", mutant.where)
    backend = "simulated" if mutant.on_devices else "gloo"
    subject = LoadedSubject(Subject(mutant.where, backend), (), fallback="simulated")
    return subject.judging(by_id()[mutant.killed_by].requirement, mutant.worlds[0]).subject
