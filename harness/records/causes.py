"""Failing results by the cause that they name, so that those which fail for the same reason read as one.

Two results fail with ``net=tied``, one of them also where ``mesh=1`` meets ``offload=cpu``::

    fails with net=tied; passes without                       2 results
    fails when mesh=1 is combined with offload=cpu; …         1 result

A result that names no cause, and whose failing case has the values of one, is of that cause, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records.record import Record

#: How many causes are told apart: ten times as many as a run has, and as a page can show.
MOST = 200


@dataclass(frozen=True)
class SharedCause:
    """A cause, as its values by dimension and in words, and the results that fail for it."""

    values: frozenset[tuple[str, str]]
    words: str
    records: tuple[Record, ...]


def shared_causes(records: Iterable[Record]) -> list[SharedCause]:
    """The causes that failing results name, waived ones included; those of most results first."""
    failing = [record for record in records if record.failed and record.combinations]
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
    return sorted(causes, key=lambda cause: -len(cause.records))


def _words(values: Iterable[tuple[str, str]]) -> str:
    return f"fails with {', '.join(f'{name}={value}' for name, value in sorted(values))}"
