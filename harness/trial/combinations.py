"""Which combinations of values a test tries, and how each ends, as its record keeps it.

Of two dimensions with two values each, a test that plans two combinations, and fails in the first of them::

    {"dimensions": {"net": ["linear", "tied"], "mesh": ["1", "2"]}, "tried": [[1, 0], [0, 1]], "ends": "F-",
     "causes": [{"values": {"net": "tied"}, "words": "fails with net=tied; passes without"}], "excluded": []}

``tried`` has the place of the value of each dimension. ``ends`` has a letter a combination: passed, failed, or ``-``,
not tried, since the test ended before, or since a cause explains it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from harness.records import record
from harness.worlds.base import SubjectFailure

PASSED, FAILED, NOT_TRIED = "P", "F", "-"


@dataclass(frozen=True)
class Excluded:
    """Combinations that a test leaves out: those with one of these values in each of these dimensions.

    ``why`` is the reason; of what another requirement judges, apart, the id of that.
    """

    kind: Literal["impossible", "apart", "not claimed", "not run"]
    why: str
    values: Mapping[str, Collection[str]]

    def as_json(self) -> record.Exclusion:
        """As a record has it."""
        return {"kind": self.kind, "why": self.why, "values": {name: list(some) for name, some in self.values.items()}}


@dataclass
class Combinations:
    """Those of one test. ``dimensions`` has the values of each dimension, the usual one first."""

    dimensions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _excluded: Sequence[Excluded] = ()
    _ends: dict[tuple[int, ...], str] = field(default_factory=dict)
    _causes: list[record.SmallestCause] = field(default_factory=list)
    _now: tuple[int, ...] | None = None

    def plan(
        self,
        dimensions: Mapping[str, Sequence[str]],
        planned: Iterable[Mapping[str, str]],
        excluded: Sequence[Excluded] = (),
    ) -> None:
        """Say what will be tried, a value of each dimension a combination, and what is left out."""
        self.dimensions, self._excluded = dimensions, excluded
        self._ends.update(dict.fromkeys(map(self._places, planned), NOT_TRIED))

    def begin(self, dimensions: Mapping[str, Sequence[str]], values: Mapping[str, str]) -> None:
        """Say of which values the example is that runs now; its end is that of the combination."""
        self.dimensions = dimensions
        self._now = self._places(values)

    def blame(self, values: Mapping[str, str], words: str) -> None:
        """Say of which values a failure is; ``words`` say so in a sentence, the same in each test with this cause."""
        self._causes.append({"values": dict(values), "words": words})

    @property
    def causes(self) -> list[Mapping[str, str]]:
        """The values that failures are blamed on; of a test that blames none, those of its failing combinations."""
        failing = [places for places, end in self._ends.items() if end == FAILED]
        return [one["values"] for one in self._causes] or [self._values(places) for places in failing]

    @contextmanager
    def noting_the_end(self) -> Iterator[None]:
        """In this block an example runs."""
        __tracebackhide__ = True
        self._now = None
        try:
            yield
        except SubjectFailure:
            self._note(FAILED)
            raise
        self._note(PASSED)

    def _note(self, end: str) -> None:
        if self._now is not None and self._ends.get(self._now) != FAILED:
            self._ends[self._now] = end

    def _values(self, places: Sequence[int]) -> dict[str, str]:
        return {name: every[place] for (name, every), place in zip(self.dimensions.items(), places, strict=True)}

    def _places(self, values: Mapping[str, str]) -> tuple[int, ...]:
        return tuple(every.index(values[name]) for name, every in self.dimensions.items())

    def as_json(self) -> record.Combinations:
        """As a record has them; empty for a test that combines nothing."""
        if not self._ends:
            return {}
        return {
            "dimensions": {name: list(values) for name, values in self.dimensions.items()},
            "excluded": [one.as_json() for one in self._excluded],
            "tried": [list(places) for places in self._ends],
            "ends": "".join(self._ends.values()),
            "causes": self._causes,
        }
