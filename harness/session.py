"""One judged run: the subject, what is planned, and how the end of each test becomes a record."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pytest
import torch
from hypothesis.errors import Flaky, Unsatisfiable, UnsatisfiedAssumption

from harness.case import Case
from harness.compare import UNBOUNDED, Difference
from harness.load import Subject, load_backend, load_implementation
from harness.requirement import Requirement
from harness.trial import Trial
from harness.vendor import LIMITS, Backend, Implementation
from harness.verdict import Record, Verdict
from harness.waivers import Waiver
from harness.worlds.base import NotRun, SubjectFailure


@dataclass
class Judged:
    """The subject of this run, loaded, with the waivers that speak of it. ``workers`` is how many processes run it."""

    subject: Subject
    waivers: tuple[Waiver, ...]
    workers: int = 1
    today: date = field(default_factory=date.today)
    implementation: Implementation = field(init=False)
    backend: Backend = field(init=False)

    def __post_init__(self) -> None:
        self.implementation = load_implementation(self.subject.implementation)
        self.backend = load_backend(self.subject.backend)

    def most_ranks(self, world: str) -> int:
        """How many ranks a world of this kind has here."""
        return self.backend.thread_ranks if world == "threads" else self.backend.ranks

    def why_not(self, requirement: Requirement, world: str) -> tuple[Verdict, str] | None:
        """The verdict and reason if this requirement is not to be tried: not claimed, or not possible here."""
        for feature in requirement.features:
            if feature not in self.implementation.claims:
                reason = self.implementation.not_claimed.get(feature, "not mentioned by the implementation")
                return Verdict.NOT_CLAIMED, f"{feature}: {reason}"
        kind = self.backend.device_type
        if self.workers > 1 and kind != "cpu":
            return Verdict.NOT_RUN, f"{self.workers} workers would share {kind} devices: run without --numprocesses"
        for limit in requirement.limits:
            if limit in self.backend.lacks:
                return Verdict.NOT_RUN, f"needs {limit} ({LIMITS[limit]}): {self.backend.lacks[limit]}"
        if self.most_ranks(world) < requirement.ranks:
            there = f"backend {self.backend.name!r} offers {self.most_ranks(world)} here"
            return Verdict.NOT_RUN, f"needs {requirement.ranks} ranks in the {world} world; {there}"
        return None

    def waiver(self, requirement: str, nodeid: str) -> Waiver | None:
        """The waiver that covers a row, if any: of the implementation, or of the backend, which is torch's version."""
        subjects = [(self.implementation.name, self.implementation.version), (self.backend.name, torch.__version__)]
        covering = (w for w in self.waivers for subject in subjects if w.covers(requirement, nodeid, *subject))
        return next(covering, None)

    def reproduction(self, nodeid: str, case: Any) -> str:
        """A shell line that runs this very case again."""
        words = ["pytest", nodeid, "--implementation", self.subject.implementation, "--backend", self.subject.backend]
        if isinstance(case, Case):
            words += ["--case", json.dumps(case.as_json())]  # ASCII: no terminal or clipboard changes it
        return shlex.join(words)


#: How a test ends that has left out all its cases: quietly, or where its cases are drawn, or where it has but one.
NO_CASE = (type(None), Unsatisfiable, UnsatisfiedAssumption)


def verdict_of(error: BaseException | None, trial: Trial | None) -> tuple[Verdict, str, str]:
    """Verdict, message and cause from what a test raised (None: nothing).

    What a rank raised or a comparison found is the subject's; what the controller raised otherwise is ours.
    """
    if trial is not None and trial.misfit and not trial.examples and isinstance(error, NO_CASE):
        words = f"every case needs more ranks than the {trial.most_ranks} that there are; the smallest {trial.misfit}"
        return Verdict.NOT_RUN, f"{words}: give more, or draw more cases by another profile", ""
    if error is None:
        if trial is None or trial.checks == 0:
            return Verdict.BROKEN, "the test passed without one effective check", "vacuous"
        return Verdict.PASS, "", ""
    found = _first(error, SubjectFailure)
    if found is not None:
        assert isinstance(found, SubjectFailure)
        flaky = isinstance(error, Flaky)
        return Verdict.FAIL, f"{'flaky: ' if flaky else ''}{found}", "flaky" if flaky else found.cause
    if isinstance(error, NotRun):
        return Verdict.NOT_RUN, str(error), "world"
    if isinstance(error, pytest.skip.Exception):
        return Verdict.BROKEN, f"a claimed requirement was skipped ({error}); claim or disclaim it instead", "skip"
    return Verdict.BROKEN, f"{type(error).__name__}: {error}", "broken"


def _first(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    if isinstance(error, kind):
        return error
    inner = getattr(error, "exceptions", ())  # of an exception group, as Hypothesis raises for flaky tests
    return next((found for one in inner if (found := _first(one, kind)) is not None), None)


def waived(verdict: Verdict, message: str, waiver: Waiver | None, today: date) -> tuple[Verdict, str]:
    """What a waiver makes of a verdict: a failure is waived, a pass or an expired waiver is stale."""
    if waiver is None or verdict not in (Verdict.FAIL, Verdict.PASS):
        return verdict, message
    if verdict is Verdict.PASS:
        return Verdict.STALE_WAIVER, f"passes, but is waived ({waiver.issue}): remove the waiver"
    if waiver.expired(today):
        return Verdict.STALE_WAIVER, f"fails, and its waiver ({waiver.issue}) ran out on {waiver.expires}: {message}"
    return Verdict.WAIVED, message


def make_record(
    judged: Judged,
    requirement: Requirement,
    nodeid: str,
    world: str,
    statement: str,
    end: tuple[Verdict, str, str],
    trial: Trial | None,
    seconds: float,
    draws: bool,
) -> Record:
    """The row that says how a test ended. Only a test that ``draws`` cases can be told which one to run again."""
    verdict, message, cause = end
    waiver = judged.waiver(requirement.id, nodeid)
    verdict, message = waived(verdict, message, waiver, judged.today)
    failed = bool(cause) and verdict is not Verdict.NOT_RUN
    case = trial.case if trial is not None and failed else None
    return Record(
        requirement=requirement.id,
        nodeid=nodeid,
        chapter=requirement.chapter,
        statement=statement,
        level=requirement.level,
        world=world,
        verdict=verdict,
        message=message,
        cause=cause,
        **_facts(trial),
        case=case.as_json() if isinstance(case, Case) else None,
        differences=list(map(_as_json, trial.differences)) if trial is not None and failed else [],
        reproduce=judged.reproduction(nodeid, case if draws else None),
        ranks=[outcome.as_json() for outcome in trial.outcomes] if trial is not None and failed else [],
        waiver=waiver.as_json() if waiver else None,
        features=[str(feature) for feature in requirement.features],
        source=requirement.source,
        seconds=round(seconds, 3),
    )


def _facts(trial: Trial | None) -> dict[str, Any]:
    if trial is None:
        return {}
    return {
        "ratio": trial.worst.ratio if trial.ratios else None,
        "worst": trial.worst.words() if trial.worst.ratio > 0 else trial.worst.path,
        "ratios": trial.ratios,
        "checks": trial.checks,
        "examples": trial.examples,
        "world_sizes": sorted(trial.world_sizes),
    }


def _as_json(told: tuple[str, Difference]) -> dict[str, Any]:
    """A comparison that failed, as JSON, which has no infinity."""
    where, found = told
    words = {"where": where, "path": found.path, "got": found.got, "want": found.want}
    sizes = {"off": found.off, "allowed": found.allowed, "ratio": found.ratio}
    return {**words, **{name: size if size < UNBOUNDED else None for name, size in sizes.items()}}
