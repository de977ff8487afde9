"""Failing results by the cause that they name, so that those which fail for the same reason read as one.

Two results fail with ``net=tied``, one of them also where ``mesh=1`` meets ``offload=cpu``::

    fails with net=tied; passes without                       2 results
    fails when mesh=1 is combined with offload=cpu; …         1 result

A result that names no cause, and whose failing case has the values of one, is of that cause, too. Of the others, those
on whose ranks the same error was raised, whatever numbers it names, have that as their cause::

    NotImplementedError: Uneven sharding of (5, 3) over 2 ranks        46 results
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.records.record import Record

#: How many causes are told apart: ten times as many as a run has, and as a page can show.
MOST = 200
#: The first line of what a rank has raised, without the place in a script of actions; and what differs by case in it.
_RAISED = re.compile(
    r"rank \d+ of \d+ failed first \(raised\): (?P<kind>[\w.]+: )?(in action \d+, [^:]*: )*(?P<error>[^\n]+)"
)
_NUMBERS = re.compile(r"\d+(\.\d+)?|0x[0-9a-f]+")


@dataclass(frozen=True)
class SharedCause:
    """A cause, as its values by dimension or an error, in words, and the results that fail for it."""

    values: frozenset[tuple[str, str]]
    words: str
    records: tuple[Record, ...]
    is_error: bool = False


def shared_causes(records: Iterable[Record]) -> list[SharedCause]:
    """The causes that failing results name, waived ones included; those of most results first."""
    records = [record for record in records if record.failed]
    failing = [record for record in records if record.combinations]
    words: dict[frozenset[tuple[str, str]], str] = {}
    found: dict[frozenset[tuple[str, str]], dict[str, Record]] = {}
    for record in failing:
        for cause in record.combinations.get("causes", []):
            values = frozenset(cause.get("values", {}).items())
            if values in found or len(found) < MOST:
                found.setdefault(values, {})[record.nodeid] = record
                words[values] = words.get(values) or cause.get("words", "")
    for record in failing:
        case = (record.case or {}) if not record.combinations.get("causes") else {}
        for values, alike in found.items() if case else ():
            if all(case.get(name) == value for name, value in values):
                alike[record.nodeid] = record
    causes = [SharedCause(each, words[each] or _words(each), tuple(alike.values())) for each, alike in found.items()]
    named = {nodeid for alike in found.values() for nodeid in alike}
    causes += _same_errors(record for record in records if record.nodeid not in named)
    return sorted(causes, key=lambda cause: -len(cause.records))


def raised(message: str) -> str:
    """The first line of the error that a rank has raised first, without its place in a script; "" if none has."""
    error = _RAISED.match(message)
    return f"{error.group('kind') or ''}{error.group('error')}".strip() if error else ""


def _same_errors(records: Iterable[Record]) -> Iterator[SharedCause]:
    """Results of several requirements with the same error, but for its numbers; in the words of the first."""
    found: dict[str, list[tuple[str, Record]]] = {}
    for record in records:
        if words := raised(record.message):
            found.setdefault(_NUMBERS.sub("#", words), []).append((words, record))
    for alike in found.values():
        if len({record.requirement for _, record in alike}) > 1:
            yield SharedCause(frozenset(), alike[0][0], tuple(record for _, record in alike), is_error=True)


def _words(values: Iterable[tuple[str, str]]) -> str:
    return f"fails with {', '.join(f'{name}={value}' for name, value in sorted(values))}"
