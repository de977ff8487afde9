"""A trial: one requirement tried on one subject in one kind of world. It is what a test is given to judge with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import currently_in_test_context
from hypothesis.errors import UnsatisfiedAssumption

from harness.data.comparison import Allowance, exact
from harness.trial.combinations import Combinations
from harness.trial.facts import Facts
from harness.trial.ranks import Ranks, Sized, offering
from harness.trial.refusals import ERRORS, Raised, cause_of, refused
from harness.trial.shrinking import FirstFailure, Shrinking
from harness.trial.soft_assertions import SoftAssertions
from harness.vendor.bounds import NotClaimed
from harness.vendor.features import Feature
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.worlds.base import OurFault, Program, SubjectFailure, World
from harness.worlds.make import open_world

#: After how many cases that ask for what is not claimed, and none that does not, no more are drawn.
MOST_UNCLAIMED = 20


class Trial:
    """Lives as long as one test, across its examples; ``facts`` is what its record keeps.

    ``most_ranks`` is how many ranks this kind of world has here; strategies draw world sizes up to it. ``deadline`` is
    for one run on the ranks, in seconds.
    """

    def __init__(
        self,
        kind: str,
        subject: Subject,
        most_ranks: int,
        deadline: float = 60.0,
        shrinking: Shrinking | None = None,
        opener: Callable[..., World] = open_world,
    ) -> None:
        self.kind, self.subject, self.most_ranks = kind, subject, most_ranks
        self.facts, self.shrinking = Facts(), shrinking or Shrinking()
        self.ranks = Ranks(partial(opener, kind, subject=subject, deadline=deadline), deadline)
        self._assertions = SoftAssertions()

    # What a test calls.

    def run(self, program: Program, case: Sized, *args: Any, ranks: int | None = None) -> list[Any]:
        """Run ``program(rank, case, *args)`` on ``case.world_size`` ranks; what each returned, in rank order.

        A test that saves on some ranks and loads on others runs twice with one case, which knows both sizes, and
        gives the second one as ``ranks``. A case for more ranks than this world has is rejected. Raises SubjectFailure
        if a rank does not return, with the first cause first; OurFault if an assertion of ours is that cause; Disturbed
        as a world does.
        """
        __tracebackhide__ = True
        self._assertions.raise_pending()
        if self.ranks.disturbed is not None:
            raise self.ranks.disturbed  # Hypothesis looks for a smaller case all the same
        size = case.world_size if ranks is None else ranks
        self.needs(size)
        before = self.facts.examples
        self.facts.begin(case, size)
        try:
            return self._run_on_ranks(size, program, case, *args)
        except NotClaimed:
            self.facts.examples = before
            raise
        except (SubjectFailure, OurFault) as failure:
            self.shrinking.note(failure, self.facts.examples)
            raise

    def _run_on_ranks(self, size: int, *words: Any) -> list[Any]:
        """Run, and note what was asked for, however that ends."""
        __tracebackhide__ = True
        try:
            return self.ranks.run(size, *words)
        finally:
            self.facts.features |= {name for outcome in self.ranks.outcomes for name in outcome.asked}

    def needs(self, ranks: int) -> None:
        """Reject the case if this world has fewer ranks."""
        if ranks > self.most_ranks:
            self.facts.misfit = min(self.facts.misfit or ranks, ranks)
            raise UnsatisfiedAssumption

    def agree(self, where: str, got: Any, want: Any, within: Allowance = exact) -> None:
        """Require that two trees agree within an allowance; ``where`` says whose, e.g. ``"rank 1"``."""
        __tracebackhide__ = True
        found = self.facts.compare(where, got, want, within)
        if found.too_much:
            self._fail(f"{where}: {found.words()}", "disagreement")

    def holds(self, fact: bool, sentence: str) -> None:
        """Require a fact; ``sentence`` says what was expected and what came."""
        __tracebackhide__ = True
        self.facts.checks += 1
        if not fact:
            self._fail(sentence, "disagreement")

    def refuses(self, program: Program, case: Sized, *names: str, error: tuple[str, ...] = ERRORS) -> None:
        """Require that every rank raises an error of these classes whose message names one of ``names``.

        They are what a user needs to know: what was given, or what is expected, in any words. An assertion of ours is
        no refusal, but OurFault.
        """
        __tracebackhide__ = True
        for number, raised in enumerate(self.run(refused, case, program)):
            self.is_refusal(f"rank {number}", raised, *names, error=error)

    def is_refusal(self, where: str, raised: Raised | None, *names: str, error: tuple[str, ...] = ERRORS) -> None:
        """Require that what a rank raised (None: nothing) is such an error."""
        __tracebackhide__ = True
        self.facts.checks += 1
        if cause := cause_of(raised, error, names):
            came = repr(f"{raised['types'][0]}: {raised['message']}") if raised else "nothing"
            wanted = f"{' or '.join(error)} that names {' or '.join(map(repr, names))}"
            self._fail(f"{where}: expected {wanted}, but {came} was raised", cause)

    @property
    def combinations(self) -> Combinations:
        """What of all combinations of some dimensions' values this test tries, for tests that combine such values."""
        return self.facts.combinations

    def failure_of(self, body: Callable[[], None]) -> SubjectFailure | None:
        """The failure that ``body``, an example, ends with; for tests that look at several before they end.

        One that is left out has none.
        """
        before, self.shrinking = self.shrinking, Shrinking()
        try:
            body()
        except SubjectFailure as failure:
            return failure
        except UnsatisfiedAssumption:
            return None
        finally:
            self.shrinking = before
        return None

    def _fail(self, message: str, cause: str) -> None:
        __tracebackhide__ = True
        failure = SubjectFailure(message, cause)
        if self._assertions.pending is None:
            self.shrinking.note(failure, self.facts.examples)
        self._assertions.fail(failure)

    # What the plugin calls.

    @contextmanager
    def collecting_failures(self, *drawn: object) -> Iterator[None]:
        """For one example, soft assertions: the first failure is raised at the end, or before ranks run again.

        ``drawn`` is what Hypothesis drew for it. When the shrinking budget is spent only an example that was begun
        before is begun again; others are rejected.
        If nothing smaller is wanted, the failure leaves the test at once, as a FirstFailure.
        An example that asks for what is not claimed is rejected; or is judged by what it had compared before, if cases
        are drawn: then further ones say no more.
        """
        __tracebackhide__ = True
        self.facts.begin_example()
        checked = self.facts.checks
        try:
            with self.facts.noting_the_end(), self.combinations.noting_the_end(), self._assertions.collecting():
                self.shrinking.begin(drawn, self.facts.examples)
                yield
        except NotClaimed as asked:
            self.facts.unclaimed[str(asked.feature)] += 1
            if self.facts.checks > checked and currently_in_test_context():
                return
            if not self.facts.checks and self.facts.unclaimed.total() >= MOST_UNCLAIMED:
                pytest.skip(str(asked))  # Hypothesis would draw ten times as many cases as the profile says
            raise UnsatisfiedAssumption from asked
        except (SubjectFailure, OurFault) as failure:
            if self.shrinking.is_wanted:
                raise
            raise FirstFailure(failure) from None

    def offering(self) -> AbstractContextManager[None]:
        """Let strategies draw world sizes up to what this world has, and features that are claimed."""
        on = load_backend(self.subject.backend).device_type
        return offering(self.most_ranks, load_implementation(self.subject.implementation), on)

    def why_not_claimed(self) -> str:
        """The features that cases were left out for, each with the implementation's reason not to claim it."""
        implementation = load_implementation(self.subject.implementation)
        return "; ".join(implementation.why_not_claimed(Feature(name)) for name in sorted(self.facts.unclaimed))

    def time_is_up(self, reason: str) -> None:
        """From another thread: end the run in progress; if there is none, interrupt the controller."""
        self.shrinking.time_out()
        self.ranks.expire(reason)

    def close(self) -> None:
        """End all worlds. Raises SubjectFailure if a rank did not leave cleanly."""
        self.ranks.close()

    def discard(self) -> None:
        """End all worlds without judging how ranks leave."""
        self.ranks.discard()
