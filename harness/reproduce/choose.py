"""Which result of a record file is meant, and what of it may be believed: nothing that is not checked here.

A record's ``reproduce`` is a command line that a run wrote, or anybody. It is not run: only two names are taken from
it, those of the implementation and the backend, and only if they are built in. The node id must be that of a test of
the suites that are installed here.
"""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass
from pathlib import Path

from harness.data.case import Case
from harness.data.text import one_line
from harness.records.reader import Run
from harness.records.record import Record, Verdict
from harness.reproduce.suite_test import Function, case_for, forms, function_of
from harness.requirements.finder import SuiteTest, suite_tests, without_folder
from harness.vendor.api import Backend, Implementation
from harness.vendor.load import BUILT_IN


@dataclass(frozen=True)
class Choice:
    """A result, the test of the installed suites that it is of, its case, and the subject to run it on."""

    record: Record
    test: SuiteTest
    function: Function
    form: str
    case: Case | None
    implementation: str
    backend: str

    @property
    def nodeid(self) -> str:
        """The node id in the suites that are installed here."""
        return f"{self.test.nodeid}[{'-'.join(filter(None, (self.record.world, self.form)))}]"


def choose(run: Run, wanted: str, folder: Path, implementation: str = "", backend: str = "") -> Choice:
    """The result that ``wanted`` names, on the subject that is given or else recorded.

    Raises ValueError if there is none, or if it does not fit the suites in ``folder``.
    """
    record = the_result(run, wanted)
    test = _test_of(record, folder)
    function = function_of(test)
    recorded = run.header.backend if run.header.backend in BUILT_IN[Backend] else ""
    return Choice(
        record,
        test,
        function,
        _form_of(record, function),
        case_for(function, record.case),
        implementation or _named(record, Implementation),
        backend or recorded or _named(record, Backend),
    )


def the_result(run: Run, wanted: str) -> Record:
    """The result of a node id, a requirement, or a requirement in a world; of several the first failed or waived one.

    Raises ValueError if there is none, or if there are several and none failed.
    """
    found = [record for record in run.records if wanted in _ids(record)]
    if not found:
        known = sorted({name for record in run.records for name in _ids(record)})
        near = difflib.get_close_matches(wanted, known, n=3)
        hint = f"; is it {' or '.join(map(_word, near))}?" if near else "; the page made of it shows which there are"
        raise ValueError(f"{run.path}: no result {_word(wanted)}{hint}")
    red = [one for one in found if one.verdict.is_red] or [one for one in found if one.verdict is Verdict.WAIVED]
    if len(found) > 1 and not red:
        names = ", ".join(_word(record.nodeid) for record in found[:8])
        raise ValueError(
            f"{run.path}: {_word(wanted)} is {len(found)} results, none of which failed; give one of {names}"
        )
    return (red or found)[0]


def others_red(run: Run, record: Record) -> list[str]:
    """The node ids of the same requirement's other results that are red, too."""
    others = (other for other in run.records if other.requirement == record.requirement)
    return [other.nodeid for other in others if other.nodeid != record.nodeid and other.verdict.is_red]


def _ids(record: Record) -> tuple[str, ...]:
    return (
        record.nodeid,
        record.nodeid.partition("[")[0],
        record.requirement,
        f"{record.requirement}[{record.world}]",
    )


def _test_of(record: Record, folder: Path) -> SuiteTest:
    """The test of the suites that a result is of, found in their files; nothing is imported for it."""
    base, _, rest = record.nodeid.partition("[")
    name = base.partition("::")[0].rpartition("/")[2] or "none"
    test = next(
        (test for test in suite_tests(folder, name) if without_folder(test.nodeid) == without_folder(base)), None
    )
    if test is None:
        raise ValueError(f"{_word(record.nodeid)} is no test of the suites in {folder}; is it from another version?")
    world = rest.removesuffix("]").partition("-")[0]
    if world != record.world or world not in (*test.worlds, "attached") or not rest.endswith("]"):
        raise ValueError(f"{_word(record.nodeid)} and the world {_word(record.world)} do not fit; was the file edited?")
    return test


def _form_of(record: Record, function: Function) -> str:
    form = record.nodeid.partition("[")[2].removesuffix("]").partition("-")[2]
    if form not in forms(function):
        known = ", ".join(map(_word, forms(function)))
        raise ValueError(f"{_word(record.nodeid)}: expected one of {known} of that test; is it from another version?")
    return form


def _named(record: Record, kind: type[Implementation] | type[Backend]) -> str:
    """The implementation or backend of a result, if it is built in: nothing else is imported on a record's word."""
    option = kind.__name__.lower()
    try:
        words = shlex.split(record.reproduce)
    except ValueError:
        words = []
    places = [place for place, word in enumerate(words[:-1]) if word == f"--{option}"]
    name = words[places[-1] + 1] if places else ""
    if name in BUILT_IN[kind]:
        return name
    foreign = f"was recorded on {option} {_word(name)}, which is not built in"
    origin = foreign if name else f"does not say which {option}"
    raise ValueError(
        f"{_word(record.nodeid)} {origin}, and nothing is imported on a record's word: "
        f"if you trust it, add --{option} {_word(name or 'NAME')}"
    )


def _word(text: str) -> str:
    """A word of others, as it may be typed."""
    return shlex.quote(one_line(text, 200))
