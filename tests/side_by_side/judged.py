"""``python -m tests.side_by_side.judged``: random scenarios on one subject, each judged by the unsharded model.

It prints the causes of failure, each with how many scenarios it explains, and is 1 if there is one. The scenarios of a
seed are those that ``python -m tests.side_by_side`` plays, if all that these need is claimed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from harness.data.kinds import WORLDS
from harness.trial import Trial
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.worlds.base import SubjectFailure
from suites.interactions.judging import Cause, follows, search
from suites.scenarios.scenario import Scenario
from tests.side_by_side.drawing import drawn

RANKS = 4
#: After how many scenarios a line says how far it is.
STEP = 500


def main() -> int:
    """Judge; 1 if a scenario failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.side_by_side.judged", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many scenarios (100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--implementation", default="torch", help="as pytest's option of this name (torch)")
    parser.add_argument("--backend", default="gloo", help="as pytest's option of this name (gloo)")
    parser.add_argument("--world", default="threads", choices=WORLDS, help="ranks as threads or processes (threads)")
    given = parser.parse_args()
    try:
        claims = load_implementation(given.implementation).claims
        load_backend(given.backend)
    except ValueError as error:
        parser.error(str(error))
    scenarios = islice(drawn(given.seed, RANKS, claims), given.count)
    causes = judged(given.world, Subject(given.implementation, given.backend), scenarios)
    print(f"{given.count} scenarios of seed {given.seed} on {given.implementation}, {given.backend}, {given.world}")
    for cause, count in causes.items():
        print(f"  {count} of them: {cause}\n    {cause.scenario}")
    return 1 if causes else 0


def judged(world: str, subject: Subject, scenarios: Iterable[Scenario]) -> dict[Cause, int]:
    """The causes in the order in which they are found, with how many scenarios each explains."""
    trial = Trial(world, subject, RANKS)
    try:
        with trial.offering():
            return search(counted(scenarios), partial(failure_of, trial), most=sys.maxsize)
    finally:
        trial.close()


def failure_of(trial: Trial, scenario: Scenario) -> SubjectFailure | None:
    """What a scenario fails with, which is printed, if it does."""

    def example() -> None:
        with trial.collecting_failures():
            follows(trial, scenario)

    failure = trial.failure_of(example)
    if failure is not None:
        print(f"{scenario}\n  {failure}", flush=True)
    return failure


def counted(scenarios: Iterable[Scenario]) -> Iterator[Scenario]:
    """The scenarios, with a line after every so many."""
    for number, scenario in enumerate(scenarios):
        if number and number % STEP == 0:
            print(f"[{number} scenarios]", flush=True)
        yield scenario


if __name__ == "__main__":
    sys.exit(main())
