"""Running a failing case again: whether it fails each time, and which collectives each rank issues.

A case in which rank 1 leaves out a collective gives, in worlds of their own::

    Rerun(again="FF", events=([{"op": "all_gather", "bytes": 32, …}, {"op": "wait", "of": 0}], []))

The verdict stays as it is. Of a case that then passes each time it is said that earlier ones decide. Failures that
leave no ranks to run again, such as a hang, are not rerun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from harness.collective_trace.recorder import Entry
from harness.records.record import Span, Verdict
from harness.trial.ranks import Sized
from harness.trial.refusals import NOT_REFUSED, RAISED_INSTEAD, REFUSED_OTHERWISE
from harness.trial.trial import Trial
from harness.trial.verdict import attempt, verdict_of
from harness.worlds.base import Fate, Program, SubjectFailure, error_summary
from harness.worlds.devices import clock
from harness.worlds.rank import Rank
from harness.worlds.workers import supervised_world

#: How often a failing case is run again, and for how many seconds at most; then once more, for its collective trace.
TIMES, BUDGET = 2, 30.0
#: How many collectives and launches are kept of each rank.
MOST_EVENTS, MOST_LAUNCHES = 200, 300
#: The causes of failure that leave ranks able to run again at once.
_CAUSES = ("disagreement", "raised", Fate.FAULTY.value, NOT_REFUSED, REFUSED_OTHERWISE, RAISED_INSTEAD, "flaky")


class Rerun(NamedTuple):
    """``again`` has one letter per run, ``F`` or ``P``; ``events`` the collectives of each rank, in order of issue.

    ``timeline`` has what devices ran, if the backend can tell.
    """

    again: str = ""
    events: tuple[list[Entry], ...] = ()
    timeline: tuple[Span, ...] = ()

    @property
    def words(self) -> str:
        """What to say before the message of a failure that processes of its own do not show."""
        alone = bool(self.again) and set(self.again) == {"P"}
        return "passes alone in new processes, so what earlier cases left there decides; after those: " if alone else ""


def rerun(body: Callable[[Trial], None], failed: Trial, cause: str) -> Rerun:
    """Run the case that ``failed`` ended with again; ``body`` is the test with that case, as a function of a trial."""
    if cause not in _CAUSES:
        return Rerun()
    supervised_world.shutdown_pool()  # what earlier cases have left in its processes may be what fails this one
    end, letters = clock() + BUDGET, ""
    while len(letters) < TIMES and clock() < end:
        trial = Trial(failed.kind, failed.subject, failed.most_ranks, deadline=BUDGET)
        verdict, *_ = verdict_of(attempt(body, trial), trial)
        if verdict not in (Verdict.PASS, Verdict.FAIL):
            return Rerun(letters)
        letters += "P" if verdict is Verdict.PASS else "F"
    traced = TracedTrial(failed.kind, failed.subject, failed.most_ranks, deadline=BUDGET)
    attempt(body, traced)
    return Rerun(letters, tuple(traced.events), tuple(traced.timeline))


class TracedTrial(Trial):
    """A trial that records the collectives of its ranks: ``events`` has them by rank, of all its runs.

    ``timeline`` has what devices ran in the last run.
    """

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.events: list[list[Entry]] = []
        self.timeline: list[Span] = []

    def run(self, program: Program, case: Sized, *args: Any, ranks: int | None = None) -> list[Any]:
        """As for any trial; if a rank raises, the collectives before that are kept."""
        try:
            results = super().run(run_traced, case, program, *args, ranks=ranks)
        except SubjectFailure as failure:  # what a device's check finds leaves what ranks returned
            self._keep([one.value for one in failure.outcomes if isinstance(one.value, dict)])
            raise
        self._keep(results)
        raised = next((rank["error"] for rank in results if rank["error"]), "")
        if raised:
            raise SubjectFailure(raised, "raised")
        return [rank["value"] for rank in results]

    def _keep(self, results: list[Any]) -> None:
        self.events += [[] for _ in results[len(self.events) :]]
        for events, rank in zip(self.events, results, strict=False):
            events += rank["events"][: MOST_EVENTS - len(events)]
        self.timeline = [span for rank in results for span in rank["timeline"]]


def run_traced(rank: Rank, case: Any, program: Program, *args: Any) -> dict[str, Any]:
    """On every rank: run ``program`` and return what it returned or raised, with the collectives that it issued."""
    value, error = None, ""
    with rank.launches() as launches, rank.collectives(waits=True) as entries:
        try:
            value = program(rank, case, *args)
        except Exception as raised:
            error = error_summary(raised)
    timeline = [Span(stream=one[0], name=one[1], begin=one[2], end=one[3]) for one in launches[:MOST_LAUNCHES]]
    events = [_brief(entry) for entry in entries[:MOST_EVENTS]]
    return {"value": value, "error": error, "events": events, "timeline": timeline}


def _brief(entry: Entry) -> Entry:
    """What a record keeps of a collective; of a wait, the number of the collective."""
    if "of" in entry:
        return entry
    kept = {name: entry[name] for name in ("op", "reduce", "ranks")}
    larger = max(entry["input"], entry["output"], key=lambda side: side["bytes"])
    return {**kept, "bytes": larger["bytes"], "dtype": larger["dtype"]}
