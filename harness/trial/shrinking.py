"""How long a smaller failing case is looked for: a budget of seconds and of cases, which starts with the first failure.

Hypothesis shrinks a failing case by running smaller ones. When the budget is spent, cases that were not run before are
rejected. Those that were are run again, also if they passed: Hypothesis takes a case that ends differently for flaky.
"""

from __future__ import annotations

from hypothesis.errors import UnsatisfiedAssumption

from harness.data.case import key_of
from harness.worlds.base import OurFault, SubjectFailure
from harness.worlds.devices import clock


class Shrinking:
    """The budget of one test, in ``seconds`` and in ``cases``, whichever is spent first.

    The number of cases makes runs end with the same case on every machine that is fast enough. A failure that took a
    whole time limit ends shrinking: it is raised again without running its case, and no other case is run.
    ``first_failure`` is when it happened (``devices.clock``, seconds) and after how many examples.
    """

    def __init__(self, seconds: float = 30.0, cases: int = 200) -> None:
        self.first_failure: tuple[float, int] | None = None
        self._seconds, self._cases = seconds, cases
        self._failures: dict[str, SubjectFailure | OurFault] = {}
        self._ran: set[str] = set()
        self._timed_out = False

    @property
    def is_wanted(self) -> bool:
        """Whether anything smaller is looked for; if not, the first failure ends the test."""
        return self._seconds > 0

    def admit(self, case: object, examples: int) -> None:
        """Let ``case`` run as the next example, reject it, or raise the failure that it is known to end with."""
        key = key_of(case)
        if self._timed_out and key in self._failures:
            raise self._failures[key]
        if key not in self._ran and (self._is_spent(examples) or (self._timed_out and self._failures)):
            raise UnsatisfiedAssumption
        self._ran.add(key)

    def _is_spent(self, examples: int) -> bool:
        if self.first_failure is None:
            return False
        at, example = self.first_failure
        return examples >= example + self._cases or clock() > at + self._seconds

    def note(self, case: object, failure: SubjectFailure | OurFault, examples: int) -> None:
        """``case`` ended with ``failure``."""
        if self.first_failure is None:
            self.first_failure = clock(), examples
        self._failures[key_of(case)] = failure
        if failure.cause == "hung":
            self.time_out()

    def time_out(self) -> None:
        """A time limit has passed."""
        self._timed_out = True
