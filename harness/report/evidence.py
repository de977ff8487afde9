"""What leads from failing results to their cause: one factor, what they ask for, what passes, and in which worlds.

Of 92 results whose gradients are half as large again as expected, in both worlds, where weights have uneven rows::

    Got ÷ expected is ×1.5 in 92 of 92 results.
    140 of 140 cases that fail ask for uneven rows, none of 31 that pass: make it right, or do not claim it.
    The case passes with net.dim 4 instead of 5, and all else alike.
    Fails in threads too, with the suite's own collectives: the implementation, not the process group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from harness.data.nearest import ABSENT, apart, has_same_numbers
from harness.data.text import one_line, plural
from harness.records.asked import distinctive, passing_ends
from harness.records.record import Record, Verdict
from harness.report.tensors import factor_text

#: How many factors, features and values of a case are said; of how many values cases may differ to be near.
_MOST_FACTORS, _MOST_FEATURES, _MOST_VALUES = 4, 3, 3
#: The world in which no process group of a backend runs.
_THREADS = "threads"


class Leads:
    """Those of one run, all of whose results are ``records``."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records, self._passing = records, passing_ends(records)

    def of(self, failing: Sequence[Record]) -> tuple[str, ...]:
        """The sentences on these failing results."""
        asked = (f"{one}." for one in distinctive(failing, self._passing)[:_MOST_FEATURES])
        found = (_factors(failing), *asked, _near(failing), _whose(failing, self._records))
        return tuple(sentence for sentence in found if sentence)


def leads_of(failing: Sequence[Record], records: Sequence[Record]) -> tuple[str, ...]:
    """The sentences on these failing results of a run, all of whose results are ``records``."""
    return Leads(records).of(failing)


# By what factor.


def factor_of(record: Record) -> float | None:
    """What came divided by what was expected, of the first tensor with one factor at every place, or of the numbers."""
    if record.tensors:
        times = (one.get("times") for one in record.tensors if not one.get("agrees", True))
        return next((factor for factor in times if factor is not None), None)
    for one in record.differences:
        try:
            factor = float(one.get("got", "")) / float(one.get("want", ""))
        except (ValueError, ZeroDivisionError):
            continue
        if math.isfinite(factor):
            return factor
    return None


def _factors(failing: Sequence[Record]) -> str:
    measured = [record for record in failing if record.differences]
    found = [(record, factor) for record in measured if (factor := factor_of(record)) is not None]
    if not found:
        return ""
    said = Counter(factor_text(factor) for _, factor in found)
    by_ranks = [record for record, factor in found if factor_text(factor) == f"×{_ranks(record)}"]
    if len({_ranks(record) for record in by_ranks}) > 1:
        said -= Counter(f"×{_ranks(record)}" for record in by_ranks)
        said["as large as the number of ranks"] = len(by_ranks)
    shown = [f"{words} in {count}" for words, count in said.most_common(_MOST_FACTORS)]
    rest = len(measured) - sum(count for _, count in said.most_common(_MOST_FACTORS))
    others = f"; in {rest} it is none of these" if rest else ""
    return f"Got ÷ expected is {', '.join(shown)} of {plural(len(measured), 'result')} with numbers{others}."


def _ranks(record: Record) -> int:
    size = (record.case or {}).get("world_size")
    return size if isinstance(size, int) else 0


# Where else there is no failure.


def _near(failing: Sequence[Record]) -> str:
    """The values that a case which passed has instead, of the result of one chapter where they are fewest."""
    if len({record.chapter for record in failing}) > 1:
        return ""
    pairs = [
        (apart(record.case, record.near), has_same_numbers(record.case, record.near))
        for record in failing
        if record.case and record.near
    ]
    values, is_same = min(pairs, key=lambda pair: (not pair[1], len(pair[0])), default=({}, False))
    if not 0 < len(values) <= _MOST_VALUES:
        return ""
    said = (f"{one_line(name, 60)} {_value(right)} instead of {_value(left)}" for name, (left, right) in values.items())
    alike = "all else alike" if is_same else "other random numbers"
    return f"The case passes with {', '.join(said)}, and {alike}."


def _value(value: object) -> str:
    return ABSENT if value in (None, "", []) else one_line(str(value), 60).strip("[]")


# Whose fault it is.


def _whose(failing: Sequence[Record], records: Iterable[Record]) -> str:
    """In which worlds the requirements fail, and what that says of the process group."""
    if all(record.verdict is Verdict.BROKEN for record in failing):
        return "The suite failed here, not the subject."
    blamed = [record for record in failing if record.verdict is Verdict.FAIL]
    if not blamed:
        return ""
    names = {record.requirement for record in blamed}
    ends = {(one.requirement, one.verdict) for one in records if one.world == _THREADS and one.requirement in names}
    in_threads = sum((name, Verdict.FAIL) in ends for name in names)
    passes = sum((name, Verdict.PASS) in ends and (name, Verdict.FAIL) not in ends for name in names)
    many = "" if len(names) == 1 else f"{in_threads} of {len(names)} requirements"
    if in_threads:
        also = " too" if any(record.world != _THREADS for record in blamed) else ""
        begun = f"{many} fail" if many else "Fails"
        return f"{begun} in threads{also}, with the suite's own collectives: the implementation, not the process group."
    if passes == len(names):
        return "Passes in threads, with the suite's own collectives: the process group, or what only processes show."
    return "Not tried in threads, so it may be the implementation or the process group; --world both tells them apart."
