"""What a failing case shows when it is run again: whether it fails each time, and what each rank issued.

A case in which rank 1 leaves out a collective tells, in worlds of their own::

    Aftermath(again="FF", events=[[{"op": "all_gather", "bytes": 32, …}, {"op": "wait", "of": 0}], []])

Nothing of it changes the verdict, and what cannot be seen again, such as a hang, is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from harness.collective_trace.recorder import Entry
from harness.records.record import Verdict
from harness.trial.trial import Sized, Trial
from harness.trial.verdict import tried, verdict_of
from harness.worlds.base import Program, SubjectFailure, error_summary
from harness.worlds.rank import Rank

#: How often a failing case is run again, and for how many seconds at most; then once more, to hear its collectives.
TIMES, BUDGET = 2, 30.0
#: How many collectives are kept of each rank.
MOST_EVENTS = 200
#: The causes of failure after which ranks are whole, and run again at once.
_CAUSES = ("disagreement", "raised", "not refused", "refused otherwise", "flaky")


class Aftermath(NamedTuple):
    """``again`` has a letter a run, ``F`` or ``P``; ``events`` the collectives of each rank, in order of issue."""

    again: str = ""
    events: tuple[list[Entry], ...] = ()


def aftermath(body: Callable[[Trial], None], failed: Trial, cause: str) -> Aftermath:
    """Run the case that ``failed`` ended with again; ``body`` is the test, given that case and a trial."""
    if cause not in _CAUSES:
        return Aftermath()
    end, letters = time.monotonic() + BUDGET, ""
    while len(letters) < TIMES and time.monotonic() < end:
        trial = Trial(failed.kind, failed.subject, failed.most_ranks, deadline=BUDGET)
        verdict, *_ = verdict_of(tried(body, trial), trial)
        if verdict not in (Verdict.PASS, Verdict.FAIL):
            return Aftermath(letters)
        letters += "P" if verdict is Verdict.PASS else "F"
    witness = Witness(failed.kind, failed.subject, failed.most_ranks, deadline=BUDGET)
    tried(body, witness)
    return Aftermath(letters, tuple(witness.events))


class Witness(Trial):
    """A trial that hears which collectives each rank issues: ``events`` has them by rank, of all its runs."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.events: list[list[Entry]] = []

    def run(self, program: Program, case: Sized, *args: Any, ranks: int | None = None) -> list[Any]:
        """As for any trial; what a rank raises is a failure as there, and what was heard before it is kept."""
        told = super().run(heard, case, program, *args, ranks=ranks)
        self.events += [[] for _ in told[len(self.events) :]]
        for lane, rank in zip(self.events, told, strict=False):
            lane += rank["events"][: MOST_EVENTS - len(lane)]
        raised = next((rank["error"] for rank in told if rank["error"]), "")
        if raised:
            raise SubjectFailure(raised, "raised")
        return [rank["value"] for rank in told]


def heard(rank: Rank, case: Any, program: Program, *args: Any) -> dict[str, Any]:
    """On every rank: run ``program`` and return what it returned or raised, with the collectives that it issued."""
    value, error = None, ""
    with rank.ledger(waits=True) as entries:
        try:
            value = program(rank, case, *args)
        except Exception as raised:
            error = error_summary(raised)
    return {"value": value, "error": error, "events": [_brief(entry) for entry in entries[:MOST_EVENTS]]}


def _brief(entry: Entry) -> Entry:
    """What a reader wants to know of a collective; of a wait, for which one it was."""
    if "of" in entry:
        return entry
    kept = {name: entry[name] for name in ("op", "reduce", "ranks")}
    larger = max(entry["input"], entry["output"], key=lambda side: side["bytes"])
    return {**kept, "bytes": larger["bytes"], "dtype": larger["dtype"]}
