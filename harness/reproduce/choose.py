"""Which row of a record file is meant, and what of it may be believed: nothing that is not checked here.

Of a row, ``reproduce`` is a line of words that a run wrote, or anybody. It is not run; it is asked for two names only,
and these are taken if they are built in. The node id must be that of a test of the suites that are installed here.
"""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.report.read import Run
from harness.report.text import one_line
from harness.reproduce.forms import drawn_by, forms_of
from harness.reproduce.literal import Literals
from harness.reproduce.sources import Source, Sources
from harness.suite_tests import SuiteTest, suite_tests
from harness.verdict import Record, Verdict

#: What needs no module of a stranger: as ``BUILT_IN`` of ``harness/load.py``, which imports torch.
BUILT_IN = {"implementation": ("torch", "reference"), "backend": ("gloo", "nccl", "auto")}


@dataclass(frozen=True)
class Choice:
    """A row, with the test of the installed suites that it is of, its form there, and who is judged where."""

    record: Record
    test: SuiteTest
    form: str
    implementation: str
    backend: str

    @property
    def module(self) -> str:
        """The module of the test."""
        return module_of(self.test)

    @property
    def function(self) -> str:
        """The name of the test."""
        return self.test.nodeid.rpartition("::")[2]

    def nodeid(self, folder: Path) -> str:
        """The row for pytest, by the suites' own folder, wherever that is."""
        file = Path(self.test.nodeid.partition("::")[0]).name
        return f"{folder / file}::{self.function}[{'-'.join(filter(None, (self.record.world, self.form)))}]"


def choose(run: Run, wanted: str, folder: Path, implementation: str = "", backend: str = "") -> Choice:
    """The row that ``wanted`` names; names that are given come before recorded ones. Raises ValueError otherwise."""
    record = the_row(run, wanted)
    test, form = _test_of(record, folder)
    recorded = run.header.backend if run.header.backend in BUILT_IN["backend"] else ""
    return Choice(
        record,
        test,
        form,
        implementation or _named(record, "implementation"),
        backend or recorded or _named(record, "backend"),
    )


def the_row(run: Run, wanted: str) -> Record:
    """The row of a node id, a requirement, or a requirement in a world; of several the first that is red, or waived."""
    found = [row for row in run.records if wanted in _ids(row)]
    if not found:
        known = sorted({name for row in run.records for name in _ids(row)})
        near = difflib.get_close_matches(wanted, known, n=3)
        hint = f"; is it {' or '.join(map(_word, near))}?" if near else "; the page made of it shows which there are"
        raise ValueError(f"{run.path}: no row {_word(wanted)}{hint}")
    red = [row for row in found if row.verdict.is_red] or [row for row in found if row.verdict is Verdict.WAIVED]
    if len(found) > 1 and not red:
        names = ", ".join(_word(row.nodeid) for row in found[:8])
        raise ValueError(f"{run.path}: {_word(wanted)} is {len(found)} rows, none of which fails; give one of {names}")
    return (red or found)[0]


def others_red(run: Run, row: Record) -> list[str]:
    """The other rows of the same requirement that are red, too."""
    return [each.nodeid for each in run.records if _is_sister(each, row) and each.verdict.is_red]


def _is_sister(one: Record, row: Record) -> bool:
    return one.requirement == row.requirement and one.nodeid != row.nodeid


def _ids(row: Record) -> tuple[str, ...]:
    return row.nodeid, row.nodeid.partition("[")[0], row.requirement, f"{row.requirement}[{row.world}]"


def _test_of(record: Record, folder: Path) -> tuple[SuiteTest, str]:
    """The test of the suites that a row is of, and its form."""
    base, _, rest = record.nodeid.partition("[")
    file, _, function = base.partition("::")
    name = file.rpartition("/")[2] or "nobody's"
    known = {test.nodeid: test for test in suite_tests(folder, name)}
    test = known.get(f"{folder.name}/{name}::{function}")
    if test is None:
        raise ValueError(f"{_word(record.nodeid)} is no test of the suites in {folder}; is it from another version?")
    world, _, form = rest.removesuffix("]").partition("-")
    if world != record.world or world not in (*test.worlds, "attached") or not rest.endswith("]"):
        raise ValueError(f"{_word(record.nodeid)} and the world {_word(record.world)} do not fit; was the file edited?")
    source = source_of(test)
    if form not in forms_of(source, function):
        forms = ", ".join(map(_word, forms_of(source, function)))
        raise ValueError(f"{_word(record.nodeid)}: expected one of {forms} of that test; is it from another version?")
    return test, form


def case_of(choice: Choice) -> dict[str, Any] | None:
    """The recorded case, if the test is drawn, and by its case alone; checked against the classes of the suites."""
    drawn = drawn_by(source_of(choice.test), choice.function)
    if choice.record.case is None or set(drawn) != {"case"}:
        return None
    Literals(Sources(), choice.module).case(choice.record.case, drawn["case"], 0)
    return choice.record.case


def source_of(test: SuiteTest) -> Source:
    """The file of a test."""
    source = Sources().get(module_of(test))
    assert source is not None, test
    return source


def module_of(test: SuiteTest) -> str:
    """The module of a test."""
    return test.nodeid.partition("::")[0].removesuffix(".py").replace("/", ".")


def _named(record: Record, kind: str) -> str:
    """The implementation or backend that a row was judged on, if it is built in; nothing else is loaded on its word."""
    try:
        words = shlex.split(record.reproduce)
    except ValueError:
        words = []
    places = [place for place, word in enumerate(words[:-1]) if word == f"--{kind}"]
    name = words[places[-1] + 1] if places else ""
    if name in BUILT_IN[kind]:
        return name
    told = f"was recorded on {kind} {_word(name)}, which is not built in" if name else f"does not say which {kind}"
    raise ValueError(
        f"{_word(record.nodeid)} {told}, and nothing is imported on a record's word: "
        f"if you trust it, add --{kind} {_word(name or 'NAME')}"
    )


def _word(text: str) -> str:
    """A word of others, as it may be typed."""
    return shlex.quote(one_line(text, 200))
