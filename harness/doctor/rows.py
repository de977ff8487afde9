"""The rows that the doctor fills in: what FSDP needs, why, and what to do where it is not there.

A row's number is that of the table in ``docs/doctor.md``, for ever; rows of one subject have letters behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: Subjects whose rows are asked in worlds of ranks.
GROUPED = ("groups", "collectives", "order", "tools")


class State(str, Enum):
    """What the doctor found. A refusal is ``missing``; a wrong answer, a crash and a hang are ``wrong``."""

    FOUND = "found"
    MISSING = "missing"
    WRONG = "wrong"
    NOT_TRIED = "not tried"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Row:
    """One need. ``limit`` names the entry of ``Backend.lacks`` that declares it missing: then no MUST depends on it.

    ``on_cpu`` is False where FSDP asks nothing of the kind of a CPU, ``needs_device`` where no device is needed to ask.
    """

    number: str
    subject: str
    what: str
    without: str
    todo: str
    level: str = "must"
    limit: str = ""
    on_cpu: bool = True
    needs_device: bool = True


@dataclass(frozen=True)
class Finding:
    """What became of one row, and what was said: by the backend, or of it."""

    state: State
    said: str = ""
    seconds: float = 0.0


def counts(row: Row, state: State, declared: frozenset[str] = frozenset()) -> bool:
    """Whether a MUST depends on what is missing or wrong here."""
    if state not in (State.MISSING, State.WRONG) or row.level != "must":
        return False
    return state is State.WRONG or row.limit not in declared
