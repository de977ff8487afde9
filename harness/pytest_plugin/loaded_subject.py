"""The subject of a run, loaded: what it claims, what can be tried on it here, and what is waived."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from typing import Any

import pytest
import torch

from harness.data.case import Case
from harness.data.kinds import ATTACHED
from harness.records.command_lines import launched, pytest_line
from harness.records.record import Verdict
from harness.requirements.marker import Requirement, kind_of
from harness.vendor.api import LIMITS, Backend, Implementation
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.waivers.waiver import Waiver, explaining
from harness.worlds.devices import most_processes
from harness.worlds.make import ranks_in


@dataclass
class LoadedSubject:
    """The implementation and the backend, with the waivers of the run. ``workers`` is how many processes run tests.

    ``fallback`` names the backend for requirements whose limits this one lacks; "none" if there is none.
    """

    subject: Subject
    waivers: tuple[Waiver, ...]
    workers: int = 1
    fallback: str = "none"
    today: date = field(default_factory=date.today)
    implementation: Implementation = field(init=False)
    backend: Backend = field(init=False)

    def __post_init__(self) -> None:
        self.implementation = load_implementation(self.subject.implementation)
        self.backend = load_backend(self.subject.backend)
        if self.backend.ranks < 1:
            raise ValueError(
                f"backend {self.backend.name!r}: ranks is {self.backend.ranks}, so no rank can run; expected at least "
                f"1, such as the number of devices: `fsdp-conformance doctor --backend {self.subject.backend}` checks "
                "whether there is one"
            )

    @property
    def name(self) -> str:
        """Name and version of the implementation, as in records."""
        return f"{self.implementation.name} {self.implementation.version}".strip()

    def judging(self, requirement: Requirement, world: str) -> LoadedSubject:
        """Itself; or the same implementation on the fallback, if only that has what this requirement is about."""
        if self.lacks(requirement) and world != ATTACHED and isinstance(self._elsewhere, LoadedSubject):
            return self._elsewhere
        return self

    @cached_property
    def _elsewhere(self) -> LoadedSubject | str:
        """The same on the fallback, loaded when it is first needed: it may have to be built; or why there is none."""
        if self.fallback == "none":
            return ""
        try:
            return replace(self, subject=replace(self.subject, backend=self.fallback), fallback="none")
        except ValueError as error:
            return f"; nor on the fallback: {error}"

    def most_ranks(self, world: str) -> int:
        """How many ranks a world of this kind has here."""
        return ranks_in(world, self.backend)

    def unclaimed(self, requirement: Requirement) -> str:
        """Why this requirement is not claimed; "" if it is."""
        for feature in requirement.features:
            if feature not in self.implementation.claims:
                return self.implementation.why_not_claimed(feature)
        return ""

    def lacks(self, requirement: Requirement) -> str:
        """What the requirement is about and this backend lacks, with its reason; "" if nothing."""
        found = (limit for limit in requirement.limits if limit in self.backend.lacks)
        return next((f"needs {limit} ({LIMITS[limit]}): {self.backend.lacks[limit]}" for limit in found), "")

    def impossible(self, requirement: Requirement, world: str) -> str:
        """Why this requirement cannot be tried here; "" if it can."""
        if self.workers > 1 == most_processes(self.backend):
            return f"{self.workers} workers would share {self.backend.device_type} devices: run without --numprocesses"
        if lacking := self.lacks(requirement):
            return lacking + (self._elsewhere if isinstance(self._elsewhere, str) else "")
        if world == "threads" and self.implementation.one_rank_per_process:
            return f"ranks cannot be threads: {self.implementation.one_rank_per_process}"
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

    def waiver(self, requirement: str, nodeid: str, causes: Sequence[Mapping[str, str]] = ()) -> Waiver | None:
        """The waiver of a test that fails for these causes: of the implementation, or of the backend.

        The version of a backend is torch's.
        """
        subjects = [(self.implementation.name, self.implementation.version), (self.backend.name, torch.__version__)]
        covering = [w for w in self.waivers for subject in subjects if w.covers(requirement, nodeid, *subject)]
        return explaining(covering, causes)

    def reproduction(self, test: Sequence[str], world: str, case: Any) -> str:
        """A shell line that runs this case again; ``test`` are the words that name it."""
        fields = case.as_json() if isinstance(case, Case) else None
        words = pytest_line(test, self.subject.implementation, self.subject.backend, fields)
        if world == ATTACHED:
            words = launched(words, self.most_ranks(ATTACHED))
        return shlex.join(words)


SUBJECT = pytest.StashKey[LoadedSubject]()


def judged(item: pytest.Item, requirement: Requirement) -> LoadedSubject:
    """What a test judges, on the backend that can try it."""
    return item.config.stash[SUBJECT].judging(requirement, kind_of(item))
