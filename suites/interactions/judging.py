"""Judging many scenarios in one test: each cause of failure is found, isolated, and told once.

The cause is the fewest values with which a scenario still fails. One of twelve special values that fails is tried
without one after the other; what cannot be left out remains::

    fails when recompute=block is combined with prefetch=forward; passes with either alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.trial import Trial, most_ranks
from harness.vendor.bounds import claims
from harness.vendor.load import load_backend
from harness.worlds.base import SubjectFailure
from suites.interactions.covering import available, covering
from suites.interactions.excluded import VALUES, excluded
from suites.kit.strategies import is_thorough
from suites.oracle import judging
from suites.oracle.expected import expected
from suites.oracle.judging import Test, failure_of, tried_by
from suites.scenarios.rules import barred
from suites.scenarios.scenario import Scenario, with_values
from suites.scenarios.sharding import play

#: After so many causes the rest is not tried.
MOST_CAUSES = 5


def follows(trial: Trial, case: Scenario) -> None:
    """Play a scenario on ranks, and compare it action by action."""
    trial.combinations.begin(VALUES, case.values)
    judging.follows(trial, play, expected(case))


def on_meshes(*meshes: str, parallelism: str = "data") -> Callable[[Test], Test]:
    """Have a test of one scenario, its ``case``, tried on those of the covering array on these meshes, or on any."""

    def is_meant(one: Scenario) -> bool:
        return one.parallelism == parallelism and (not meshes or one.mesh in meshes)

    return tried_by(partial(judge, is_meant=is_meant))


def judge(trial: Trial, test: Test, is_meant: Callable[[Scenario], bool]) -> None:
    """Try what is meant of the array; at the end raise for all causes, with the first one's smallest scenario as case.

    If nothing smaller is wanted, the first failing scenario ends the test.
    """
    __tracebackhide__ = True
    scenarios = [one for one in covering(claims(), trial.most_ranks, strength(trial)) if is_meant(one)]
    left_out = excluded(claims(), trial.most_ranks, strength(trial))
    trial.combinations.plan(VALUES, [one.values for one in scenarios], left_out)
    failures: dict[Scenario, SubjectFailure | None] = {}

    def fails(one: Scenario) -> SubjectFailure | None:
        failures[one] = failure = failure_of(trial, test, one)
        if failure is not None and not trial.shrinking.is_wanted:
            raise failure
        return failure

    causes = search(scenarios, fails)
    for cause in causes:
        trial.combinations.blame(cause.values, str(cause))
    if not causes:
        return
    first = next(iter(causes)).scenario
    words = [f"{cause} ({count} of {len(scenarios)} scenarios)" for cause, count in causes.items()]
    if len(causes) == MOST_CAUSES:
        words.append(f"after {MOST_CAUSES} causes the other scenarios were not tried")
    found = failure_of(trial, test, first) or SubjectFailure(
        f"tried again it passed; before: {failures[first]}", "flaky"
    )
    raise SubjectFailure("; ".join(words) + f". The first: {found}", found.cause, found.outcomes)


def strength(trial: Trial) -> int:
    """How many values are tried together: pairs, and triples if thorough; of two worlds, in processes one fewer."""
    has_threads = load_backend(trial.subject.backend).thread_ranks > 0
    return 2 + is_thorough() - (trial.kind != "threads" and has_threads)


def search(
    scenarios: Iterable[Scenario], failure_of: Callable[[Scenario], Any], most: int = MOST_CAUSES
) -> dict[Cause, int]:
    """Up to so many causes in order, with how many scenarios each explains; the rest is tried without what fails."""
    causes: dict[Cause, int] = {}
    for scenario in scenarios:
        changed: Scenario | None = scenario
        while changed is not None:
            known = next((one for one in causes if one.explains(changed)), None)
            if known is None and failure_of(changed) is None:
                break
            if known is None:
                known = isolated(changed, lambda one: failure_of(one) is not None)
                causes[known] = 1
                if len(causes) == most or not special(known.scenario):
                    return causes
            else:
                causes[known] += changed == scenario
            changed = known.avoided(changed, causes)
    return causes


#: Whether a scenario fails.
Fails = Callable[[Scenario], bool]


@dataclass(frozen=True)
class Cause:
    """The smallest failing scenario that was found."""

    scenario: Scenario

    @property
    def needed(self) -> dict[str, str]:
        """The values that cannot be left out, since without them the others cannot be."""
        chosen = special(self.scenario)
        found = {name: value for name, value in chosen.items() if without(self.scenario, name) is None}
        return found if len(found) < len(chosen) else {}

    @property
    def values(self) -> dict[str, str]:
        """The values that fail; those that they need are not among them."""
        return {name: value for name, value in special(self.scenario).items() if name not in self.needed}

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.values.items()]
        needed = [f"{name}={value}" for name, value in self.needed.items()]
        given = f", for which {' and '.join(needed)} is needed" if needed else ""
        if not words:
            return "fails with nothing special"
        if len(words) == 1:
            return f"fails with {words[0]}{given}; passes without"
        alone = "either alone" if len(words) == 2 else f"any {len(words) - 1} of them"
        return f"fails when {' and '.join(words[:-1])} is combined with {words[-1]}{given}; passes with {alone}"

    def explains(self, scenario: Scenario) -> bool:
        """Whether a scenario has all these values."""
        return special(self.scenario).items() <= scenario.values.items()

    def avoided(self, scenario: Scenario, others: Iterable[Cause]) -> Scenario | None:
        """The scenario with a plain value for one of these, so that no cause explains it; None if there is none."""
        for name in special(self.scenario):
            less = without(scenario, name)
            if less is not None and not any(cause.explains(less) for cause in (self, *others)):
                return less
        return None


def isolated(scenario: Scenario, fails: Fails) -> Cause:
    """The cause of a failing scenario's failure: no single value more can be left out."""
    chosen, smaller = scenario, True
    while smaller:
        smaller = False
        for name in special(chosen):
            less = without(chosen, name)
            if less is not None and fails(less):
                chosen, smaller = less, True
    return Cause(chosen)


def without(scenario: Scenario, name: str) -> Scenario | None:
    """The scenario with a plain value of this dimension, if that can go with the others and is judged here."""
    less = {**scenario.values, name: plain()[name]}
    return None if barred(less) else with_values(less, scenario.seed)


def special(scenario: Scenario) -> dict[str, str]:
    """The values that are not plain."""
    common = plain()
    return {name: chosen for name, chosen in scenario.values.items() if chosen != common[name]}


def plain() -> dict[str, str]:
    """The value of every dimension that is nothing special: the default, or the first that is claimed."""
    return {name: values[0] for name, values in available(claims(), most_ranks()).items()}
