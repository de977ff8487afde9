"""A stanza for each failure of a run: all that is known is filled in, and what a person must say is left empty.

    [[waiver]]
    requirement = "offload/pinned"
    subject = "torch"
    issue = ""       # FILL IN: …

``read_waivers`` refuses the file until issue, reason and expires are there, so that no failure is excused by a program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from packaging.version import InvalidVersion, Version

from harness.data.text import one_line
from harness.records.reader import Run, missing
from harness.records.record import Record, Verdict
from harness.run_comparison.matching import name_of_test
from harness.waivers.check import subjects
from harness.waivers.waiver import MOST_DOTS

_HEAD = """\
# Suggested by `fsdp-conformance waivers suggest`. Refused as it is: every FILL IN needs a person who knows the defect.
"""


class Unwritable(ValueError):
    """A text that TOML has no way to hold."""


def is_unexcused(row: Record) -> bool:
    """Whether a row fails without a waiver that holds."""
    return row.failed and row.verdict is not Verdict.WAIVED


def suggestions(run: Run, only: Collection[str] = ()) -> str:
    """TOML with a stanza for each failure that no waiver covers; ``only`` those of these requirements or node ids."""
    rows: dict[str, list[Record]] = {}
    for record in run.records:
        rows.setdefault(record.requirement, []).append(record)
    stanzas = [text for same in rows.values() for text in _of_requirement(run, same, only)]
    return "\n".join([_HEAD, *stanzas]) if stanzas else "# Nothing to waive: no row fails without a waiver.\n"


def _of_requirement(run: Run, rows: Sequence[Record], only: Collection[str]) -> Iterator[str]:
    asked = [row for row in rows if is_unexcused(row) and (not only or {row.requirement, row.nodeid} & set(only))]
    fails = [row for row in asked if row.verdict is Verdict.FAIL]
    yield from (_overdue(row) for row in asked if row.verdict is Verdict.STALE_WAIVER)
    if fails and len(fails) == len(rows) and _is_whole(run, rows):
        yield _stanza(run, fails, "requirement", rows[0].requirement)
    else:
        yield from (_stanza(run, [row], "nodeid", row.nodeid) for row in fails)


def _is_whole(run: Run, rows: Sequence[Record]) -> bool:
    """Whether these are all rows of a requirement: both worlds were asked for, and none of its rows is missing."""
    tests = {name_of_test(row.nodeid) for row in rows}
    return len(run.header.worlds) > 1 and not any(name_of_test(nodeid) in tests for nodeid in missing(run))


def _overdue(row: Record) -> str:
    issue = (row.waiver or {}).get("issue", "")
    return (
        f"{_comment(f'{row.requirement} in {row.world} fails, and its waiver ({issue}) ran out: see to that one.')}\n"
    )


def _stanza(run: Run, rows: Sequence[Record], key: str, name: str) -> str:
    (subject, version), *_, (backend, _) = subjects(run.header)
    where = f"{rows[0].requirement} fails in {', '.join(row.world for row in rows)}"
    lines = [_comment(f"{where}: {(rows[0].message.splitlines() or [''])[0]}")]
    lines += [_comment(f"statement: {rows[0].statement}")]
    lines += [_comment(f"row: {row.nodeid}") for row in rows] if key == "requirement" else []
    try:
        pairs = [(key, toml_string(name), ""), ("subject", toml_string(subject), f"or the backend: {backend}")]
    except Unwritable:
        return "\n".join([*lines, "# No stanza: a name has characters that TOML has no way to write.", ""])
    pairs += [
        ("issue", '""', "FILL IN: a link to the issue"),
        ("reason", '""', "FILL IN: what is wrong, in a line"),
        ("expires", '""', "FILL IN: the last day, as 2030-12-31 without quotes"),
        *_versions(version),
    ]
    lines += ["[[waiver]]", *(f"{key} = {value}{'  ' + _comment(said) if said else ''}" for key, value, said in pairs)]
    return "\n".join([*lines, ""])


def _versions(version: str) -> list[tuple[str, str, str]]:
    try:
        public = Version(version).public
    except InvalidVersion:
        return []
    return [("versions", toml_string(f"=={public}"), "the one that was judged; widen it to those that fail too")]


# TOML.


def toml_string(text: str) -> str:
    """A basic string of TOML, in one line, of what can be seen; the reader stops at many dots, so they are escaped."""
    if any(0xD800 <= ord(char) < 0xE000 for char in text):
        raise Unwritable("lone surrogates")
    dots = "\\u002E" if text.count(".") > MOST_DOTS // 4 else "."
    return '"' + "".join(dots if char == "." else _escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable():
        return char
    return f"\\u{ord(char):04X}" if ord(char) < 0x10000 else f"\\U{ord(char):08X}"


def _comment(text: str) -> str:
    said = one_line(text, 240)
    return f"# {said.replace('.', '·') if said.count('.') > MOST_DOTS // 4 else said}"
