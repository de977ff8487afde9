"""Judging many scenarios in one test: each cause of failure is found, isolated, and told once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import Any

from harness.trial import Trial, claims
from harness.vendor.load import load_backend
from harness.worlds.base import SubjectFailure
from suites.interactions.covering import covering
from suites.interactions.expected import expected
from suites.interactions.isolation import Cause, isolated
from suites.interactions.scenario import Scenario
from suites.interactions.sharded import play
from suites.kit.strategies import is_thorough

#: After so many causes the rest is not tried.
MOST_CAUSES = 5


def follows(trial: Trial, case: Scenario) -> None:
    """Play a scenario on ranks, and compare action by action, so that the first that goes wrong is named."""
    want, traces = expected(case), trial.run(play, case)
    for place, action in enumerate(want.actions):
        for number, trace in enumerate(traces):
            due = want.on_rank(place, number)
            got = {name: trace[place][name] for name in due}
            trial.agree(f"rank {number}, after action {place + 1}, {action}", got, due, want.within)


class Tried:
    """The scenarios of a test as its cases: one by one for ``--case``, where Hypothesis draws none."""

    def __init__(self, inner_test: Callable[..., None]) -> None:
        self.inner_test = inner_test


def on_meshes(*meshes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a test of one scenario, its ``case``, tried on those of the covering array that have such a mesh."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        tried = Tried(test)

        @wraps(test)
        def each(*, trial: Trial) -> None:
            __tracebackhide__ = True
            judge(trial, tried.inner_test, meshes)

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name != "case"]
        vars(each).update(hypothesis=tried, __signature__=signature.replace(parameters=kept))
        return each

    return decorate


def judge(trial: Trial, test: Callable[..., None], meshes: Sequence[str]) -> None:
    """Try every scenario; at the end raise for all causes, with the smallest failing scenario of the first as case."""
    __tracebackhide__ = True
    scenarios = [one for one in covering(claims(), trial.most_ranks, strength(trial)) if one.mesh in meshes]
    causes, explained = search(scenarios, partial(failure_of, trial, test))
    if not causes:
        return
    first = failure_of(trial, test, causes[0].scenario)
    words = [f"{cause} ({count} of {len(scenarios)} scenarios)" for cause, count in zip(causes, explained, strict=True)]
    if len(causes) == MOST_CAUSES:
        words.append(f"after {MOST_CAUSES} causes the other scenarios were not tried")
    found = first or SubjectFailure("it did not fail again", "flaky")
    raise SubjectFailure("; ".join(words) + f". The first: {found}", found.cause, found.outcomes)


def strength(trial: Trial) -> int:
    """How many values are tried together: pairs; of two worlds in a quick run, processes try each value alone."""
    has_threads = load_backend(trial.subject.backend).thread_ranks > 0
    return 1 if trial.kind != "threads" and has_threads and not is_thorough() else 2


def failure_of(trial: Trial, test: Callable[..., None], scenario: Scenario) -> SubjectFailure | None:
    """What a scenario fails with, if it does. Raises it if the time of the test is up."""
    failure = trial.failure_of(partial(test, trial=trial, case=scenario))
    if failure is not None and failure.cause == "hung":
        raise failure
    return failure


def search(scenarios: Iterable[Scenario], failure_of: Callable[[Scenario], Any]) -> tuple[list[Cause], list[int]]:
    """The causes, and how many scenarios each explains, of which the rest is tried without what fails."""
    causes: list[Cause] = []
    counts: list[int] = []
    for scenario in scenarios:
        changed: Scenario | None = scenario
        while changed is not None and (known := next((c for c in causes if c.explains(changed)), None)):
            counts[causes.index(known)] += changed == scenario
            changed = known.avoided(changed, causes)
        if changed is None or failure_of(changed) is None:
            continue
        causes.append(isolated(changed, lambda one: failure_of(one) is not None))
        counts.append(1)
        if len(causes) == MOST_CAUSES or not causes[-1].scenario.special:
            break
    return causes, counts
