"""Checks: what FSDP needs, what to do where it is not there, and what became of each.

returns "1 device"           ─▶  found       raises NotTried("no device here")  ─▶  not tried
raises NotImplementedError   ─▶  missing     raises Wrong("got [2], not [3]")   ─▶  wrong
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.data.kinds import StringEnum
from harness.data.text import one_line
from harness.worlds.base import error_summary


class Status(StringEnum):
    """What the doctor found. A refusal is ``missing``; a wrong answer, a crash and a hang are ``wrong``."""

    FOUND = "found"
    MISSING = "missing"
    WRONG = "wrong"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Check:
    """One need. ``level`` is must, should, or waived; ``without`` is what breaks, ``todo`` what to do about it."""

    id: str
    what: str
    without: str = ""
    todo: str = ""
    level: str = "must"


@dataclass(frozen=True)
class Finding:
    """What became of one check, what was said by the backend or of it, and how long it took, in seconds."""

    check: Check
    state: Status
    said: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "said", one_line(self.said))

    @property
    def is_fault(self) -> bool:
        """Whether something is missing or wrong."""
        return self.state in (Status.MISSING, Status.WRONG)

    @property
    def counts(self) -> bool:
        """Whether a MUST depends on what is missing or wrong."""
        return self.is_fault and self.check.level == "must"


@dataclass(frozen=True)
class Probe:
    """A check with the function that tries it.

    ``on_cpu`` is False where FSDP asks nothing of the kind of a CPU, ``needs_device`` where none is needed to try.
    """

    check: Check
    ask: Callable[[Any], str | None]
    on_cpu: bool = True
    needs_device: bool = True


def probe(without: str, todo: str, level: str = "must", **where: Any) -> Callable[[Callable[[Any], str | None]], Probe]:
    """Make a function a probe: its docstring is the need, its name with dashes the id; ``where`` is of ``Probe``."""

    def made(ask: Callable[[Any], str | None]) -> Probe:
        what = " ".join((ask.__doc__ or "").split()).rstrip(".")
        return Probe(Check(ask.__name__.replace("_", "-"), what, without, todo, level), ask, **where)

    return made


def probes_in(names: dict[str, Any]) -> dict[str, Probe]:
    """The probes among the names of a module, by id, in their order there."""
    return {each.check.id: each for each in names.values() if isinstance(each, Probe)}


class Wrong(Exception):
    """It answered, and wrongly."""


class NotTried(Exception):
    """There is nothing to try here; says why."""


def require(is_right: bool, words: str) -> None:
    """Raise ``Wrong`` unless it is right."""
    if not is_right:
        raise Wrong(words)


Answer = list[str]  # a state and what was said, as plain data, which ranks can send


def answer(ask: Callable[[], str | None]) -> Answer:
    """Ask, and say what was found, whatever is raised."""
    try:
        return [Status.FOUND.value, ask() or ""]
    except Wrong as error:
        return [Status.WRONG.value, str(error)]
    except NotTried as error:
        return [Status.NOT_TRIED.value, str(error)]
    except BaseException as error:  # a stranger's code may raise anything, SystemExit too
        return [Status.MISSING.value, last_line(error)]


def finding(check: Check, said: Answer) -> Finding:
    """The finding of an answer, if it is one: who sends it may have run anybody's code."""
    try:
        state, words = said
        return Finding(check, Status(state), str(words))
    except (TypeError, ValueError):
        return Finding(check, Status.WRONG, "answered something that is no finding")


_WORST_FIRST = (Status.WRONG, Status.MISSING, Status.NOT_TRIED, Status.FOUND)


def of_ranks(check: Check, said: list[Answer]) -> Finding:
    """The worst of what all ranks answered, by the first that says so; one that refuses alone is wrong."""
    found = [finding(check, one) for one in said]
    number, worst = min(enumerate(found), key=lambda one: _WORST_FIRST.index(one[1].state))
    if not worst.is_fault or len(found) == 1 or all(one.state is Status.MISSING for one in found):
        return worst
    return replace(worst, state=Status.WRONG, said=f"rank {number}: {worst.said}")


def last_line(error: BaseException) -> str:
    """Type and message of an error, and of the error at its root if that is another."""
    root, seen = error, {id(error)}
    while (cause := root.__cause__ or root.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        root = cause
    words = _words(error)
    return words if root is error else one_line(f"{words} (because of {_words(root)})")


def _words(error: BaseException) -> str:
    """The message of a C++ error continues with its stack, which is left out here."""
    return one_line(error_summary(error).partition("\nException raised from")[0].strip(), 300)
