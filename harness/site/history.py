"""Runs by subject, what each came to by chapter, and what became of each result from run to run.

Three runs of ``torch on gloo`` are one ``History``; the matrix shows the newest that left no requirement out. Newest is
what has the highest versions, and of the same versions the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from packaging.version import InvalidVersion, Version

from harness.data.text import unique
from harness.records.record import Record, Verdict
from harness.records.standing import PART_OF, PARTS, Part, Standing, chapter_tallies, standing
from harness.site.given import GivenRun

#: At the end of the name of an implementation.
_VERSION = re.compile(r"(?:^|(?<=\s))v?\d[\w.+-]*$", re.A)


@dataclass(frozen=True)
class Score:
    """Results of a chapter in a run, by part of a bar."""

    parts: dict[Part, int]

    @property
    def claimed(self) -> int:
        """Of how many results the subject claims that they pass."""
        return sum(self.parts.values()) - self.parts[Part.NOT_CLAIMED]

    @property
    def part(self) -> Part:
        """What is to be seen first: a failure, what is unproven, what is waived."""
        order = (Part.FAIL, Part.UNPROVEN, Part.WAIVED, Part.PASS)
        return next((part for part in order if self.parts[part]), Part.NOT_CLAIMED)

    def __str__(self) -> str:
        return f"{self.parts[Part.PASS]}/{self.claimed}" if self.claimed else "–"


@dataclass(frozen=True)
class JudgedRun:
    """One run of a subject."""

    given: GivenRun

    @cached_property
    def standing(self) -> Standing:
        """What the run comes to."""
        return standing(self.given.run)

    @property
    def icon(self) -> str:
        """The icon of that."""
        return PARTS[self.standing.state].value

    @cached_property
    def scores(self) -> dict[str, Score]:
        """By chapter."""
        return {tally.level: Score(tally.parts) for tally in chapter_tallies(self.given.run.records)}

    @cached_property
    def results(self) -> dict[str, Record]:
        """By node id."""
        return {record.nodeid: record for record in self.given.run.records}

    @property
    def age(self) -> tuple[Version, Version, str]:
        """What runs of a subject are put in order by: its version, torch's, and when the run was started."""
        header = self.given.run.header
        return _version_in(header.implementation), _version_in(self.torch), header.started

    @property
    def day(self) -> str:
        """When it was started, ``2026-11-23``."""
        return self.given.run.header.started[:10]

    @property
    def torch(self) -> str:
        """The version of torch, if the run says it."""
        return self.given.run.header.environment.get("torch", "")

    @property
    def page(self) -> str:
        """Where its page is, from the root of the site."""
        return f"runs/{self.given.key}.html"


@dataclass(frozen=True)
class ResultHistory:
    """One result in all runs of a subject, oldest first; None in runs without it."""

    nodeid: str
    newest: Record
    records: tuple[Record | None, ...]

    @property
    def verdicts(self) -> tuple[Verdict | None, ...]:
        """Those of ``records``."""
        return tuple(None if record is None else record.verdict for record in self.records)

    @property
    def changed(self) -> bool:
        """Whether it came out differently in two of the runs that have it."""
        return len({verdict for verdict in self.verdicts if verdict is not None}) > 1

    @property
    def failing(self) -> bool:
        """Whether it fails, or is unproven, in the newest run that has it."""
        return PART_OF[self.newest.verdict] in (Part.FAIL, Part.UNPROVEN)


@dataclass(frozen=True)
class History:
    """All runs of a subject, newest last, and the name of its files."""

    name: str
    slug: str
    runs: tuple[JudgedRun, ...]

    @property
    def shown(self) -> JudgedRun:
        """The run that the matrix and the badge show: the newest of all requirements, or else the newest."""
        whole = [run for run in self.runs if not run.given.run.header.left_out]
        return (whole or self.runs)[-1]

    def chapters(self) -> dict[str, list[ResultHistory]]:
        """The history of each result, by chapter, in the order of the newest run."""
        found: dict[str, list[ResultHistory]] = {}
        for nodeid in unique(nodeid for run in reversed(self.runs) for nodeid in run.results):
            records = tuple(run.results.get(nodeid) for run in self.runs)
            newest = next(record for record in reversed(records) if record is not None)
            found.setdefault(newest.chapter, []).append(ResultHistory(nodeid, newest, records))
        return found


def histories_of(runs: Iterable[GivenRun]) -> list[History]:
    """One of each subject, in the order of their names: an implementation on a backend, whatever the versions."""
    found: dict[str, list[JudgedRun]] = {}
    for given in runs:
        header = given.run.header
        found.setdefault(f"{_unversioned(header.implementation)} on {header.backend}", []).append(JudgedRun(given))
    names = sorted(found)
    runs_of = {name: tuple(sorted(found[name], key=lambda run: run.age)) for name in names}
    return [History(name, slug_of(name), runs_of[name]) for name in names]


def chapters_of(histories: Sequence[History]) -> tuple[str, ...]:
    """All chapters, in the order in which the shown runs have them."""
    return unique(chapter for history in histories for chapter in history.shown.scores)


def _unversioned(implementation: str) -> str:
    """``torch 2.13.0+cpu`` is ``torch``: one subject in all its versions."""
    return _VERSION.sub("", implementation).strip() or implementation


def _version_in(text: str) -> Version:
    """The version that a text ends with; that of no release if there is none."""
    found = _VERSION.search(text)
    try:
        return Version(found.group() if found else "0")
    except InvalidVersion:
        return Version("0")


def slug_of(name: str) -> str:
    """The name of a subject's files, whatever other subjects there are; of unusual names, with their digest."""
    plain = name.replace(" on ", "-on-")
    if re.fullmatch(r"[a-z0-9_.-]{1,80}", plain, re.A) and plain.count("-on-") == 1:
        return plain
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower())[:60].strip('-')}-{sha256(name.encode()).hexdigest()[:8]}"
