"""The words that every world shares: programs, fates, outcomes, and the ``World`` that makes them.

A *program* is a module-level function ``program(rank, *args)`` that runs on every rank and returns plain data
(see ``wire.py``). Two ranks, where rank 1 raises while rank 0 waits in an all-reduce, end so::

    Outcome(rank=0, fate=Fate.INTERRUPTED, error="waiting in all_reduce …", at=2.0)
    Outcome(rank=1, fate=Fate.RAISED, error="MemoryError: out of memory", at=1.0)      # the first cause
"""

from __future__ import annotations

import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.data.kinds import StringEnum
from harness.data.text import visible

Program = Callable[..., Any]

#: How much of an exception's text is kept.
_TEXT_LIMIT = 64 * 1024
#: What torch's C++ puts before the message of a failed check: rank, moment, file and line.
_LOGGED = re.compile(r"^(\[rank\d+\]:)?\[[A-Z]\d{4} \d\d:\d\d:\d\d\.\d+ [\w./]+:\d+\] ")
#: The packages that judge. What a subject or torch asserts lies elsewhere.
_OURS = ("harness", "suites")


class Fate(StringEnum):
    """What became of one rank in one run."""

    RETURNED = "returned"  # a value came back
    RAISED = "raised"  # the program raised; ``error`` has the type and message
    ASSERTED = "asserted"  # an assertion of ours failed, which says nothing about the subject
    MISMATCHED = "mismatched"  # ranks called different collectives, or with different shapes, dtypes, groups
    DEADLOCKED = "deadlocked"  # no rank could run any more; ``traceback`` shows where each one waits
    HUNG = "hung"  # the deadline passed
    CRASHED = "crashed"  # the process died: signal or exit code in ``error``
    EXITED = "exited"  # the process left with code 0 before its result came
    FAULTY = "device fault"  # the values came back, but the backend's own check found something; ``error`` says what
    UNSENDABLE = "unsendable"  # the program's result is not plain data
    INTERRUPTED = "interrupted"  # a peer's victim: ended because another rank had failed


@dataclass(frozen=True)
class Outcome:
    """One rank's end. ``at`` is a time on the machine's monotonic clock, in seconds, so ranks can be ordered.

    ``asked`` are the features that programs of its process have asked for.
    """

    rank: int
    fate: Fate
    value: Any = None
    error: str = ""
    traceback: str = ""
    log: str = ""
    at: float = 0.0
    asked: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """The outcome without its value, as JSON types."""
        return {
            "rank": self.rank,
            "fate": self.fate.value,
            "error": self.error,
            "traceback": self.traceback,
            "log": self.log,
        }


def first_cause(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The rank that failed first and of itself; a victim only if all are victims; None if all returned."""
    failed = [outcome for outcome in outcomes if outcome.fate is not Fate.RETURNED]
    return min(failed, key=lambda o: (o.fate is Fate.INTERRUPTED, o.at, o.rank), default=None)


def describe(outcomes: Sequence[Outcome]) -> str:
    """Say in a few lines which rank failed first, and what became of the others."""
    first = first_cause(outcomes)
    if first is None:
        return f"all {len(outcomes)} ranks returned"
    lines = [f"rank {first.rank} of {len(outcomes)} failed first ({first.fate}): {first.error}"]
    others = [o for o in outcomes if o is not first and o.fate is not Fate.RETURNED]
    lines += [f"  rank {o.rank} {o.fate}: {o.error.splitlines()[0] if o.error else ''}" for o in others]
    return "\n".join(lines)


def is_our_assertion(error: BaseException) -> bool:
    """Whether it is an assertion that failed in code of ours: what asserts is neither the subject nor torch."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    where = str(frames[-1].f_globals.get("__name__", "")) if frames else ""
    return isinstance(error, AssertionError) and where.partition(".")[0] in _OURS


def fate_of(error: BaseException) -> Fate:
    """The fate of a rank that raised it."""
    return Fate.ASSERTED if is_our_assertion(error) else Fate.RAISED


def error_summary(error: BaseException) -> str:
    """``TypeName: message``, also for an exception whose ``str`` raises."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException as second:
        message = f"(its message cannot be shown: {type(second).__name__})"
    message = _LOGGED.sub("", message)
    return f"{name}: {message}"[:_TEXT_LIMIT] if message else name


def format_error(error: BaseException) -> str:
    """The traceback of ``error`` as text, cut at its start if it is very long."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_TEXT_LIMIT:]
    except BaseException:
        return "".join(traceback.format_tb(error.__traceback__))[-_TEXT_LIMIT:] + error_summary(error)


class SubjectFailure(AssertionError):
    """The subject is at fault. ``cause`` is the class of failure, ``outcomes`` what became of each rank.

    The message may hold what ranks say, and pytest prints it as it is: so nothing in it is left to steer a terminal.
    """

    def __init__(self, message: str, cause: str, outcomes: Sequence[Outcome] = ()) -> None:
        super().__init__(visible(message))
        self.cause = cause
        self.outcomes = tuple(outcomes)


class OurFault(Exception):
    """An assertion of ours failed on a rank: a mistake of the suites, whatever the subject did."""

    cause = "broken"


class NotRun(Exception):
    """The requirement could not be tried here, since ranks, devices or a folder are missing; says why.

    ``cause`` is the cause in the record.
    """

    cause = "world"

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class WorldCannotStart(NotRun):
    """The ranks of a world could not be started, which no backend can declare as a limit.

    The first line of the message is the reason, without rank and world size; the second line names those.
    """

    cause = "cannot start"


class Disturbed(Exception):
    """Something from outside ended or stopped processes of ours during a run, which says nothing about the subject."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class World(ABC):
    """``size`` live ranks of one subject. A context manager; ``close`` ends the ranks and judges how they left."""

    kind: str
    size: int

    @abstractmethod
    def run(self, program: Program, *args: Any, deadline: float | None = None) -> tuple[Outcome, ...]:
        """Run ``program(rank, *args)`` on every rank; one outcome a rank, in rank order, and never an exception.

        ``deadline`` is in seconds. After any fate but RETURNED the ranks are gone; the next run makes new ones.
        Raises ``WorldCannotStart`` if the ranks cannot be started, and ``Disturbed`` if something from outside ended or
        stopped them twice: a run that was disturbed once is repeated, with a warning.
        """

    @abstractmethod
    def expire(self, reason: str) -> None:
        """From another thread: end the run in progress now, as if its deadline had passed, because of ``reason``."""

    @abstractmethod
    def close(self) -> tuple[Outcome, ...]:
        """End the ranks and leave nothing behind; outcomes other than RETURNED where a rank did not leave cleanly."""

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
