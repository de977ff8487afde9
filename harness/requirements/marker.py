"""A requirement: a test with a stable id, a level, what it needs, and its docstring as the statement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeVar

import pytest

from harness.data.case import Case
from harness.data.kinds import ATTACHED as ATTACHED
from harness.data.kinds import LEVELS, WORLDS, Level
from harness.vendor.api import LIMITS
from harness.vendor.features import Feature

#: The chapter that judges the user's own model, and is left out where there is none.
OWN_MODEL = "model"
Test = TypeVar("Test", bound=Callable[..., Any])


class Judging(Protocol):
    """What a test is given to judge results with: a ``Trial``."""

    def collecting_failures(self, *drawn: object) -> AbstractContextManager[None]:
        """Report every failed comparison of an example, for which ``drawn`` was drawn, not only the first."""
        ...


@dataclass(frozen=True)
class Requirement:
    """What the suite says of one test. ``id`` is ``chapter/name`` and never changes its meaning."""

    id: str
    features: tuple[Feature, ...]
    level: Level
    ranks: int
    limits: tuple[str, ...]
    worlds: tuple[str, ...]
    source: str

    @property
    def chapter(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]


def requirement(
    id: str,
    *features: Feature,
    level: Level = "must",
    ranks: int = 1,
    limits: tuple[str, ...] = (),
    worlds: tuple[str, ...] = WORLDS,
    source: str = "",
) -> Callable[[Test], Test]:
    """Mark a test as a requirement. ``ranks`` is the fewest it makes sense on, ``limits`` what a machine must not lack.

    Comparisons in each of its examples are soft assertions (``Trial.collecting_failures``), and each of its cases is
    fitted to what is claimed (``Case.fitted``).

    ``source`` names the rows of ``docs/evidence/seed-coverage.md`` that it covers, e.g. ``"C8"``.
    """
    assert "/" in id, id
    assert level in LEVELS, level
    assert set(limits) <= set(LIMITS), limits
    assert set(worlds) <= set(WORLDS), worlds
    mark = pytest.mark.requirement(Requirement(id, features, level, ranks, limits, worlds, source))
    return lambda test: mark(_with_soft_assertions(test))


def _with_soft_assertions(test: Any) -> Any:
    """The test, or of one that draws cases what Hypothesis calls for each, with both: see ``requirement``."""
    drawn = getattr(test, "hypothesis", None)
    inner = test if drawn is None else drawn.inner_test

    @wraps(inner)
    def collecting(*args: Any, trial: Judging, **rest: Any) -> None:
        __tracebackhide__ = True
        fitted = {name: each.fitted() if isinstance(each, Case) else each for name, each in rest.items()}
        with trial.collecting_failures(*fitted.values()):
            inner(*args, trial=trial, **fitted)

    if drawn is None:
        return collecting
    drawn.inner_test = collecting
    return test


def kind_of(item: pytest.Item) -> str:
    """The kind of world that ``item``, a requirement, runs in."""
    assert isinstance(item, pytest.Function)
    return str(item.callspec.params["world_kind"])


def requirement_of(item: pytest.Item) -> Requirement | None:
    """The requirement that ``item`` is, if any."""
    marker = item.get_closest_marker("requirement")
    found = marker.args[0] if marker else None
    assert found is None or isinstance(found, Requirement)
    return found
