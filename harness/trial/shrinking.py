"""How long a smaller failing case is looked for: a budget of seconds and of cases, which starts with the first failure.

Hypothesis shrinks a failing example by running smaller ones. When the budget is spent, examples that were not run
before are rejected before anything is done for them. Those that were are run again, also if they passed: Hypothesis
takes an example that ends differently for flaky.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis.errors import UnsatisfiedAssumption

from harness.data.case import key_of
from harness.worlds.base import OurFault, SubjectFailure
from harness.worlds.devices import clock


class FirstFailure(BaseException):
    """The failure of a test that wants no smaller one: not for Hypothesis, which would draw and run more cases.

    What runs the test, outside Hypothesis, takes ``failure`` from it: see ``failure_in``.
    """

    def __init__(self, failure: SubjectFailure | OurFault) -> None:
        super().__init__(failure)
        self.failure = failure


def failure_in(raised: BaseException) -> BaseException:
    """What a test has failed with: what it raised, or what that brought past Hypothesis."""
    return raised.failure if isinstance(raised, FirstFailure) else raised


class Shrinking:
    """The budget of one test, in ``seconds`` and in ``cases``, whichever is spent first.

    The number of cases makes runs end with the same case on every machine that is fast enough. A failure that took a
    whole time limit ends shrinking: it is raised again without running its example, and no other example is run.
    ``first_failure`` is when it happened (``devices.clock``, seconds) and after how many examples.
    """

    def __init__(self, seconds: float = 30.0, cases: int = 200) -> None:
        self.first_failure: tuple[float, int] | None = None
        self._seconds, self._cases = seconds, cases
        self._failures: dict[str, SubjectFailure | OurFault] = {}
        self._began: set[str] = set()
        self._key = ""
        self._timed_out = False

    @property
    def is_wanted(self) -> bool:
        """Whether anything smaller is looked for; if not, the first failure ends the test."""
        return self._seconds > 0

    def begin(self, drawn: Sequence[object], examples: int) -> None:
        """Let the next example begin, with what was drawn for it; reject it, or raise what it is known to end with."""
        self._key = key = "; ".join(map(key_of, drawn))
        if self._timed_out and key in self._failures:
            raise self._failures[key]
        if key not in self._began and (self._is_spent(examples) or (self._timed_out and self._failures)):
            raise UnsatisfiedAssumption
        self._began.add(key)

    def _is_spent(self, examples: int) -> bool:
        if self.first_failure is None:
            return False
        at, example = self.first_failure
        return examples >= example + self._cases or clock() > at + self._seconds

    def note(self, failure: SubjectFailure | OurFault, examples: int) -> None:
        """The example in progress ended with ``failure``."""
        if self.first_failure is None:
            self.first_failure = clock(), examples
        self._failures[self._key] = failure
        if failure.cause == "hung":
            self.time_out()

    def time_out(self) -> None:
        """A time limit has passed."""
        self._timed_out = True
