"""The verdict on a test, from what it raised and what its trial had checked by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis.errors import Flaky, Unsatisfiable, UnsatisfiedAssumption

from harness.collective_trace.recorder import Entry
from harness.records.record import Span, Verdict
from harness.trial.shrinking import FirstFailure, failure_in
from harness.trial.trial import Trial
from harness.worlds.base import Disturbed, NotRun, SubjectFailure


class Result(NamedTuple):
    """Verdict, message and cause; what ``rerun.py`` found; and whether an unclaimed requirement passed when tried."""

    verdict: Verdict
    message: str
    cause: str
    again: str = ""
    events: tuple[list[Entry], ...] = ()
    timeline: tuple[Span, ...] = ()
    tried: str = ""


def attempt(body: Callable[[Trial], None], trial: Trial) -> BaseException | None:
    """Run a test with its trial, outside pytest; what the test, or closing its ranks, raised."""
    try:
        with trial.offering():
            body(trial)
        trial.close()
    except (Exception, pytest.skip.Exception, FirstFailure) as raised:
        return failure_in(raised)
    finally:
        trial.discard()
    return None


#: How a test ends whose cases were all rejected: without an error, while drawing, or with its one explicit case.
NO_CASE = (type(None), Unsatisfiable, UnsatisfiedAssumption)


def verdict_of(error: BaseException | None, trial: Trial | None) -> tuple[Verdict, str, str]:
    """Verdict, message and cause from what a test raised (None: nothing).

    A SubjectFailure is the subject's fault unless something from outside disturbed its ranks; any other error is ours.
    """
    facts = trial.facts if trial is not None else None
    if trial is not None and facts and facts.misfit and not facts.examples and isinstance(error, NO_CASE):
        words = f"every case needs more ranks than the {trial.most_ranks} that there are; the smallest {facts.misfit}"
        return Verdict.NOT_RUN, f"{words}: give more, or draw more cases by another profile", ""
    if trial is not None and facts and facts.unclaimed and isinstance(error, (*NO_CASE, pytest.skip.Exception)):
        if not facts.checks or isinstance(error, UnsatisfiedAssumption):
            return Verdict.NOT_CLAIMED, trial.why_not_claimed(), ""
        error = None  # some cases were judged
    if error is None:
        if facts is None or facts.checks == 0:
            return Verdict.BROKEN, "the test passed without one effective check", "vacuous"
        return Verdict.PASS, "", ""
    if disturbed := _first(error, Disturbed):
        return Verdict.BROKEN, str(disturbed), "disturbed"
    found = _first(error, SubjectFailure)
    if found is not None:
        assert isinstance(found, SubjectFailure)
        flaky = isinstance(error, Flaky)
        return Verdict.FAIL, f"{'flaky: ' if flaky else ''}{found}", "flaky" if flaky else found.cause
    if isinstance(error, NotRun):
        return Verdict.NOT_RUN, str(error), error.cause
    if isinstance(error, pytest.skip.Exception):
        return Verdict.BROKEN, f"a claimed requirement was skipped ({error}); claim or disclaim it instead", "skip"
    return Verdict.BROKEN, f"{type(error).__name__}: {error}", "broken"


def _first(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    if isinstance(error, kind):
        return error
    inner = getattr(error, "exceptions", ())  # of an exception group, as Hypothesis raises for flaky tests
    return next((found for one in inner if (found := _first(one, kind)) is not None), None)
