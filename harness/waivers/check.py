"""What is to be said of each waiver of a file: does it match, does it still hold, and is it still needed?

Of a waiver for a requirement that has a row in each of two worlds, record files say::

    fail  fail  ─▶  needed            fail  pass  ─▶  too broad: name the row that fails by its node id
    pass  pass  ─▶  stale             not run     ─▶  unused

Requirements are known from the suites' own files, which are read and never run, and from record files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from harness.data.kinds import StringEnum
from harness.data.text import one_line, plural, unique
from harness.records.reader import Run
from harness.records.record import Header, Record
from harness.requirements.finder import SuiteTest, without_folder
from harness.run_comparison.matching import name_of_test, parameters_of
from harness.waivers.waiver import Waiver

#: A waiver that ends within so many days is announced.
SOON = 30
_SHOWN = 3


class Weight(StringEnum):
    """Whether a finding is good, worth knowing, or makes the check fail."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Remark:
    """One thing to say of one waiver; ``entry`` is its place in the file, from 1."""

    entry: int
    waiver: Waiver
    weight: Weight
    kind: str
    words: str

    def __str__(self) -> str:
        who = f"{self.waiver.subject} {self.waiver.versions}".strip()
        words = f"{self.waiver.name} ({who}): {self.kind}: {self.words}"
        return f"{self.weight:7}  entry {self.entry}  {one_line(words, 1000)}"


class Known:
    """What waivers are held against: the suites' tests (None where no suite is at hand), runs, and the day."""

    def __init__(self, tests: Sequence[SuiteTest] | None, runs: Sequence[Run], today: date) -> None:
        self.has_tests, self.runs, self.today = tests is not None, runs, today
        self._tests: dict[tuple[str, str], list[SuiteTest]] = {}
        for test in tests or ():
            for name in (("requirement", test.requirement), ("nodeid", without_folder(test.nodeid))):
                self._tests.setdefault(name, []).append(test)
        self._rows = [_by_name(run.records) for run in runs]
        self.planned = frozenset(nodeid for run in runs for nodeid in run.header.plan)

    def tests(self, waiver: Waiver) -> list[SuiteTest]:
        """The tests that a waiver is about; the folder of the suites may be anywhere."""
        if waiver.values:
            return [test for tests in self._tests.values() for test in tests if waiver.names(test.requirement, "")]
        tail = without_folder(name_of_test(waiver.nodeid))
        return self._tests.get(("requirement", waiver.requirement) if waiver.requirement else ("nodeid", tail), [])

    def rows(self, waiver: Waiver) -> list[tuple[Run, list[Record]]]:
        """Each run with its rows that a waiver is about; of one for a combination, those that fail with it, if any."""
        if waiver.values:
            return [(run, _combining(waiver, run.records)) for run in self.runs]
        name = ("requirement", waiver.requirement) if waiver.requirement else ("nodeid", waiver.nodeid)
        return [(run, rows.get(name, [])) for run, rows in zip(self.runs, self._rows, strict=True)]

    def names(self, waiver: Waiver) -> set[str]:
        """What a waiver of the same rows, or of more, would be about: this requirement, or node id."""
        if waiver.requirement:
            return {waiver.requirement, waiver.name}
        known = {test.requirement for test in self.tests(waiver)}
        return {waiver.nodeid, *known, *(row.requirement for _, rows in self.rows(waiver) for row in rows)}


def _combining(waiver: Waiver, records: Sequence[Record]) -> list[Record]:
    rows = [record for record in records if waiver.names(record.requirement, record.nodeid)]
    failing = [row for row in rows if row.failed and _is_explained(row, waiver)]
    return failing or [row for row in rows if row.passed]


def _is_explained(row: Record, waiver: Waiver) -> bool:
    return any(waiver.explains(cause.get("values", {})) for cause in row.combinations.get("causes", []))


def _by_name(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        for name in (("requirement", record.requirement), ("nodeid", record.nodeid)):
            found.setdefault(name, []).append(record)
    return found


@dataclass
class _Tried:
    """What became of a waiver's rows in one run."""

    run: Run
    failed: list[Record]
    passed: list[Record]
    idle: list[Record]


def check(waivers: Sequence[Waiver], known: Known) -> list[Remark]:
    """What is to be said of each waiver, in the order of the file; at least one finding each."""
    found: list[Remark] = []
    before: dict[tuple[str, str, str], int] = {}
    for entry, waiver in enumerate(waivers, 1):
        said = [*_twice(waiver, before, known), *_of_one(waiver, known)]
        found += [Remark(entry, waiver, *one) for one in said or [(Weight.OK, "matches", _extent(waiver, known))]]
        before.setdefault((waiver.subject, waiver.versions, waiver.name), entry)
    return found


Said = Iterator[tuple[Weight, str, str]]


def _of_one(waiver: Waiver, known: Known) -> Said:
    yield from _term(waiver, known.today)
    strange = list(_matches(waiver, known))
    yield from strange or (_use(waiver, known) if known.runs else ())


def _term(waiver: Waiver, today: date) -> Said:
    left = (waiver.expires - today).days
    if left < 0:
        ago = plural(-left, "day")
        yield Weight.ERROR, "expired", f"ran out on {waiver.expires}, {ago} ago; mend the defect or set a new date"
    elif left <= SOON:
        yield Weight.WARNING, "expires soon", f"on {waiver.expires}, in {plural(left, 'day')}"


def _twice(waiver: Waiver, before: Mapping[tuple[str, str, str], int], known: Known) -> Said:
    wider = [(waiver.subject, versions, name) for versions in ("", waiver.versions) for name in known.names(waiver)]
    earlier = min((before[one] for one in wider if one in before), default=0)
    if earlier:
        yield Weight.ERROR, "said already", f"entry {earlier} covers the same rows; remove one of them"


# Does it match?


def _matches(waiver: Waiver, known: Known) -> Said:
    """What is wrong with its name; nothing for a row that is on record, or planned and never written."""
    if waiver.nodeid in known.planned or any(rows for _, rows in known.rows(waiver)):
        return
    tests = known.tests(waiver)
    if not known.has_tests and not known.runs:
        yield Weight.WARNING, "not checked", "no suite is at hand; give --suites or --records"
    elif not tests:
        what = "requirement" if waiver.requirement else "row"
        yield Weight.ERROR, "matches nothing", f"there is no such {what}; correct its name or remove the waiver"
    elif waiver.nodeid and not any(_in_world(waiver.nodeid, test.worlds) for test in tests):
        worlds = " or ".join(f"[{world}]" for world in tests[0].worlds)
        yield Weight.ERROR, "matches nothing", f"the test has no such row; its parameters begin with {worlds}"


def _in_world(nodeid: str, worlds: Collection[str]) -> bool:
    return parameters_of(nodeid).partition("-")[0] in worlds


def _extent(waiver: Waiver, known: Known) -> str:
    worlds = unique(world for test in known.tests(waiver) for world in test.worlds)
    return f"all rows in {' and '.join(worlds)}" if waiver.requirement else "one row"


# Is it needed?


def _use(waiver: Waiver, known: Known) -> Said:
    judged = [_tried(run, rows) for run, rows in known.rows(waiver) if _is_about(waiver, run.header)]
    met = [one for one in judged if one.failed or one.passed]
    fails, passes = [one for one in met if one.failed], [one for one in met if one.passed]
    if not judged:
        yield Weight.WARNING, "unused", "no record file is of this subject, in these versions"
    elif not met:
        ends = sorted({str(row.verdict) for one in judged for row in one.idle})
        yield Weight.WARNING, "unused", f"its rows were not tried ({', '.join(ends) or 'no record of them'})"
    elif not fails and waiver.sporadic:
        yield Weight.WARNING, "unused", f"it passed in {_files(passes)}, as what is sporadic may"
    elif not fails:
        rows = plural(sum(len(one.passed) for one in passes), "row")
        yield Weight.ERROR, "stale", f"{rows} of it passed, and none failed, in {_files(passes)}; remove it"
    elif not passes or waiver.sporadic:
        yield Weight.OK, "needed", f"{plural(sum(len(one.failed) for one in fails), 'row')} failed in {_files(fails)}"
    else:
        yield Weight.ERROR, "too broad", _too_broad(fails, passes)


def _too_broad(fails: Sequence[_Tried], passes: Sequence[_Tried]) -> str:
    mixed = next((one for one in fails if one.passed), None)
    if mixed is None:
        alike = {one.run.header.implementation for one in fails} & {one.run.header.implementation for one in passes}
        what = "find out why" if alike else "give versions"
        return f"failed in {_files(fails)} and passed in {_files(passes)}; {what}"
    every = len(mixed.failed) + len(mixed.passed)
    names = ", ".join(row.nodeid for row in mixed.failed[:_SHOWN])
    more = f" and {len(mixed.failed) - _SHOWN} more" if len(mixed.failed) > _SHOWN else ""
    said = f"matches {every} rows of {_files([mixed])}, of which {len(mixed.failed)} failed"
    return f"{said}; name by nodeid what fails: {names}{more}"


def _files(tried: Sequence[_Tried]) -> str:
    return ", ".join(f"{one.run.path.name} ({one.run.header.implementation})" for one in tried)


def _tried(run: Run, rows: Sequence[Record]) -> _Tried:
    failed, passed = [row for row in rows if row.failed], [row for row in rows if row.passed]
    return _Tried(run, failed, passed, [row for row in rows if not row.failed and not row.passed])


def _is_about(waiver: Waiver, header: Header) -> bool:
    """Whether the waiver is about what was judged in a run."""
    return any(waiver.covers(waiver.requirement, waiver.nodeid, *subject) for subject in subjects(header))


def subjects(header: Header) -> list[tuple[str, str]]:
    """Name and version of what a run judged: the implementation, and the backend, whose version is torch's.

    A record has both in one text, ``torch 2.13.0+cpu``; a last word without a digit may be part of the name.
    """
    name, _, last = header.implementation.rpartition(" ")
    whole = (header.implementation, "")
    split = [(name, last)] if name else []
    implementation = [*split, whole] if any(char.isdigit() for char in last) else [whole, *split]
    return [*implementation, (header.backend, header.environment.get("torch", ""))]
