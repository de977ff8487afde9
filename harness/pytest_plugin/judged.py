"""One judged run: the subject, what is planned, and how the end of each test becomes a record."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import torch

from harness.collective_trace.recorder import Entry
from harness.data.case import Case
from harness.data.comparison import UNBOUNDED, Difference
from harness.data.kinds import ATTACHED
from harness.records.command_lines import launched, pytest_line
from harness.records.record import Record, Verdict
from harness.requirements.marker import Requirement
from harness.trial.trial import Trial
from harness.trial.verdict import End
from harness.vendor.api import LIMITS, Backend, Implementation
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.waivers.waiver import Waiver, waived
from harness.worlds.make import ranks_in


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

    @property
    def name(self) -> str:
        """Who is judged, as records have it: name and version."""
        return f"{self.implementation.name} {self.implementation.version}".strip()

    def most_ranks(self, world: str) -> int:
        """How many ranks a world of this kind has here."""
        return ranks_in(world, self.backend)

    def unclaimed(self, requirement: Requirement) -> str:
        """Why this requirement is not claimed; "" if it is."""
        for feature in requirement.features:
            if feature not in self.implementation.claims:
                why = self.implementation.not_claimed.get(feature, "not mentioned by the implementation")
                return f"{feature}: {why}"
        return ""

    def impossible(self, requirement: Requirement, world: str) -> str:
        """Why this requirement cannot be tried here; "" if it can."""
        kind = self.backend.device_type
        if self.workers > 1 and kind != "cpu":
            return f"{self.workers} workers would share {kind} devices: run without --numprocesses"
        for limit in requirement.limits:
            if limit in self.backend.lacks:
                return f"needs {limit} ({LIMITS[limit]}): {self.backend.lacks[limit]}"
        if self.most_ranks(world) < requirement.ranks:
            whose = "the launcher" if world == ATTACHED else f"backend {self.backend.name!r}"
            there = f"{whose} offers {self.most_ranks(world)} here"
            return f"needs {requirement.ranks} ranks in the {world} world; {there}"
        return ""

    def why_not(self, requirement: Requirement, world: str) -> tuple[Verdict, str] | None:
        """The verdict and reason if this requirement is not to be tried: not claimed, or not possible here."""
        if why := self.unclaimed(requirement):
            return Verdict.NOT_CLAIMED, why
        why = self.impossible(requirement, world)
        return (Verdict.NOT_RUN, why) if why else None

    def waiver(self, requirement: str, nodeid: str) -> Waiver | None:
        """The waiver that covers a row, if any: of the implementation, or of the backend, which is torch's version."""
        subjects = [(self.implementation.name, self.implementation.version), (self.backend.name, torch.__version__)]
        covering = (w for w in self.waivers for subject in subjects if w.covers(requirement, nodeid, *subject))
        return next(covering, None)

    def reproduction(self, nodeid: str, case: Any) -> str:
        """A shell line that runs this very case again."""
        fields = case.as_json() if isinstance(case, Case) else None
        words = pytest_line(nodeid, self.subject.implementation, self.subject.backend, fields)
        if nodeid.endswith(f"[{ATTACHED}]"):
            words = launched(words, self.most_ranks(ATTACHED))
        return shlex.join(words)


def make_record(
    judged: Judged,
    requirement: Requirement,
    nodeid: str,
    world: str,
    statement: str,
    end: End,
    trial: Trial | None,
    seconds: float,
    draws: bool,
) -> Record:
    """The row that says how a test ended. Only a test that ``draws`` cases can be told which one to run again."""
    verdict, message, cause, again, events, tried = end
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
        **_facts(trial, failed, events),
        case=case.as_json() if isinstance(case, Case) else None,
        again=again,
        reproduce=judged.reproduction(nodeid, case if draws else None),
        waiver=waiver.as_json() if waiver else None,
        features=[str(feature) for feature in requirement.features],
        source=requirement.source,
        tried=tried,
        seconds=round(seconds, 3),
    )


def _facts(trial: Trial | None, failed: bool, events: Sequence[list[Entry]]) -> dict[str, Any]:
    """What the trial measured and, where something failed, what shows how."""
    if trial is None:
        return {}
    return {
        "differences": list(map(_as_json, trial.differences)) if failed else [],
        "ranks": [outcome.as_json() for outcome in trial.outcomes] if failed else [],
        "events": list(events),
        "ratio": trial.worst.ratio if trial.ratios else None,
        "worst": trial.worst.words() if trial.worst.ratio > 0 else trial.worst.path,
        "ratios": trial.ratios,
        "ulps": trial.ulps,
        "curves": trial.curves,
        "checks": trial.checks,
        "examples": trial.examples,
        "world_sizes": sorted(trial.world_sizes),
    }


def _as_json(told: tuple[str, Difference]) -> dict[str, Any]:
    """A comparison that failed, as JSON, which has no infinity."""
    where, found = told
    words = {"where": where, "path": found.path, "got": found.got, "want": found.want}
    sizes = {"off": found.off, "allowed": found.allowed, "ratio": found.ratio}
    ulp = found.ulp or None
    return {**words, "ulp": ulp, **{name: size if size < UNBOUNDED else None for name, size in sizes.items()}}
