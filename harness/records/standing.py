"""What a run comes to: counts by verdict and level, and one word with its reason.

For 41 MUST results that pass, 2 waived and 3 requirements not claimed::

    CONFORMS to what it claims: 41 MUST results pass; 3 requirements not claimed; 2 results waived
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.data.kinds import LEVELS, StringEnum
from harness.data.text import plural
from harness.records.reader import Run, miscounted, missing
from harness.records.record import Record, Verdict


class State(StringEnum):
    """The three words a page can open with."""

    CONFORMS = "CONFORMS"
    DOES_NOT_CONFORM = "DOES NOT CONFORM"
    INCOMPLETE = "INCOMPLETE"


@dataclass(frozen=True)
class Standing:
    """Where a subject stands after one run, and why, in one sentence."""

    state: State
    reason: str

    def __str__(self) -> str:
        return f"{self.state}{' ' if self.state is State.CONFORMS else ': '}{self.reason}"


class Part(StringEnum):
    """The five parts of a bar."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CLAIMED = "not claimed"
    WAIVED = "waived"
    UNPROVEN = "unproven"


#: Which part of the bar a verdict counts with. Unproven: nothing was learned about the subject.
PART_OF = {
    Verdict.PASS: Part.PASS,
    Verdict.FAIL: Part.FAIL,
    Verdict.STALE_WAIVER: Part.FAIL,
    Verdict.NOT_CLAIMED: Part.NOT_CLAIMED,
    Verdict.WAIVED: Part.WAIVED,
    Verdict.NOT_RUN: Part.UNPROVEN,
    Verdict.BROKEN: Part.UNPROVEN,
}

#: The part of a bar that each word is drawn as.
PARTS = {State.CONFORMS: Part.PASS, State.DOES_NOT_CONFORM: Part.FAIL, State.INCOMPLETE: Part.UNPROVEN}

_WORST_FIRST = (
    Verdict.FAIL,
    Verdict.STALE_WAIVER,
    Verdict.BROKEN,
    Verdict.NOT_RUN,
    Verdict.WAIVED,
    Verdict.NOT_CLAIMED,
    Verdict.PASS,
)

_EXIT_STATUS = {
    2: "it was interrupted or stopped",
    3: "of an internal error",
    4: "of a usage error",
    5: "no test was collected",
}


@dataclass(frozen=True)
class Tally:
    """The results of one level, or chapter, by part; ``level`` is empty for planned results that never reported one."""

    level: str
    parts: dict[Part, int]

    @property
    def total(self) -> int:
        """The denominator: every result of the level, whatever became of it."""
        return sum(self.parts.values())


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that a person must see first among those of one requirement."""
    return min(verdicts, key=_WORST_FIRST.index)


def is_waived(ratio: float, verdict: Verdict) -> bool:
    """Whether a measurement is beyond its bound, and a waiver excuses that: it is not shown as a failure then."""
    return ratio > 1 and verdict is Verdict.WAIVED


def severity(ratio: float, verdict: Verdict) -> tuple[int, float]:
    """What to compare measurements by to find the worst: beyond the bound, then beyond it and waived, then by size."""
    return 0 if ratio <= 1 else 1 if is_waived(ratio, verdict) else 2, ratio


def elsewhere(records: Iterable[Record]) -> dict[str, int]:
    """How many results another backend than the run's has, by its name: of requirements of what the run's lacks."""
    return Counter(record.backend for record in records if record.backend and record.was_tried)


def counts(records: Iterable[Record]) -> dict[tuple[str, Verdict], int]:
    """Results by level and verdict."""
    return Counter((record.level, record.verdict) for record in records)


def tallies(run: Run) -> list[Tally]:
    """The five-part bar of each level, and a last one for planned results that never reported, if there are any."""
    found = counts(run.records)
    bars = [Tally(level, _parts({v: found[level, v] for v in Verdict})) for level in LEVELS]
    lost = len(missing(run))
    return [*bars, Tally("", {**_parts({}), Part.UNPROVEN: lost})] if lost else bars


def chapter_tallies(records: Iterable[Record]) -> list[Tally]:
    """The five-part bar of each chapter, in the order in which chapters came up; its name stands for the level."""
    found: dict[str, Counter[Verdict]] = {}
    for record in records:
        found.setdefault(record.chapter, Counter())[record.verdict] += 1
    return [Tally(name, _parts({v: verdicts[v] for v in Verdict})) for name, verdicts in found.items()]


def _parts(by_verdict: dict[Verdict, int]) -> dict[Part, int]:
    parts = dict.fromkeys(Part, 0)
    for verdict, count in by_verdict.items():
        parts[PART_OF[verdict]] += count
    return parts


def standing(run: Run) -> Standing:
    """Judge a run: a MUST that fails blocks; what is not known makes it INCOMPLETE; only the rest can conform.

    That the run counted other results than the file has comes first in the reason, since all else may be wrong then.
    """
    blocking = _blocking(run)
    if blocking:
        return Standing(State.DOES_NOT_CONFORM, "; ".join([*miscounted(run), _blocked(blocking)]))
    found = gaps(run)
    if found:
        return Standing(State.INCOMPLETE, "; ".join(found))
    return Standing(State.CONFORMS, _conforming(run))


def first_blocking(run: Run) -> Record | None:
    """The result that the reason of a run which does not conform names as the first."""
    return min(_blocking(run), key=lambda record: _WORST_FIRST.index(record.verdict), default=None)


def _blocking(run: Run) -> list[Record]:
    return [r for r in run.records if r.level == "must" and PART_OF[r.verdict] is Part.FAIL]


def _blocked(blocking: list[Record]) -> str:
    stale = [record for record in blocking if record.verdict is Verdict.STALE_WAIVER]
    failed = len(blocking) - len(stale)
    said = [f"{plural(failed, 'MUST result')} {_verb(failed, 'fail')}"] if failed else []
    be = "is" if len(stale) == 1 else "are"
    said += [f"{plural(len(stale), 'waiver')} of MUST results {be} stale"] if stale else []
    first = min(blocking, key=lambda record: _WORST_FIRST.index(record.verdict))
    return f"{', '.join(said)}; first {first.requirement} in {first.world}"


def gaps(run: Run) -> dict[str, str]:
    """Everything that keeps a run without a blocking failure from being called conforming, and what to do about it."""
    own = dict.fromkeys(miscounted(run), "The file was cut or edited: record the run again.")
    return own | _gaps(run) | _footer_gaps(run)


def _gaps(run: Run) -> dict[str, str]:
    by = Counter(record.verdict for record in run.records)
    lost, broken, idle = len(missing(run)), by[Verdict.BROKEN], by[Verdict.NOT_RUN]
    found = counts(run.records)
    found_gaps = [
        (run.footer is None, "the run was cut short (no footer)", "Run it to its end."),
        (not run.records, "no results were written", "See what pytest said, then run it again."),
        (
            run.header.left_out > 0,
            f"{plural(run.header.left_out, 'requirement')} of the suites left out of this run",
            "Run all suites, without -k and without names of files.",
        ),
        (lost > 0, f"{plural(lost, 'planned result')} never reported", "See Unproven for which; run it to its end."),
        (broken > 0, f"{plural(broken, 'result')} broken (the suite's own fault)", "See Failures, and report them."),
        (idle > 0, f"{plural(idle, 'result')} not run", "See Unproven for what each needs."),
        (
            bool(run.records) and not found["must", Verdict.PASS],
            "no MUST result passed, so nothing is proven",
            "Claim what is implemented, or run more requirements.",
        ),
        (
            bool(run.damage) and run.footer is not None,
            "the record file is damaged, or was edited",
            "See Unproven for which; record the run again.",
        ),
    ]
    return {said: todo for holds, said, todo in found_gaps if holds}


def _footer_gaps(run: Run) -> dict[str, str]:
    if run.footer is None:
        return {}
    problems, status = run.footer.problems, run.footer.exit_status
    said = f"{plural(len(problems), 'problem')} reported at the end of the run"
    found = {said: "See Unproven for which."} if problems else {}
    if status not in (0, 1):
        why = _EXIT_STATUS.get(status, "of something else")
        found[f"pytest ended with status {status} because {why}"] = "Run it to its end."
    if status == 1 and not any(record.verdict.is_red for record in run.records):
        found["pytest ended with status 1, and no result says why"] = "See what pytest said at its end."
    return found


def _conforming(run: Run) -> str:
    found = counts(run.records)
    passed = found["must", Verdict.PASS]
    unclaimed = len({record.requirement for record in run.records if record.verdict is Verdict.NOT_CLAIMED})
    waived = sum(found[level, Verdict.WAIVED] for level in LEVELS)
    said = [f"{plural(passed, 'MUST result')} {_verb(passed, 'pass')}"]
    said += [f"{plural(unclaimed, 'requirement')} not claimed"] if unclaimed else []
    said += [f"{plural(waived, 'result')} waived"] if waived else []
    said += [f"{plural(count, 'result')} judged on {name}" for name, count in elsewhere(run.records).items()]
    for level in LEVELS[1:]:
        red = found[level, Verdict.FAIL] + found[level, Verdict.STALE_WAIVER]
        said += [f"{plural(red, f'{level.upper()} result')} {_verb(red, 'fail')}, which does not block"] if red else []
    scope = "to what it claims" if unclaimed or run.header.not_claimed else "to every requirement planned"
    return f"{scope}: {'; '.join(said)}"


def _verb(count: int, verb: str) -> str:
    if count != 1:
        return verb
    return verb + ("es" if verb.endswith("s") else "s")
