"""What is known of this version's own power to find faults, and which known fault a failure looks like.

``known_faults.json`` comes with the package and is measured with each release: which planted faults were caught, and
with what message each. A message is compared with numbers and dotted names blanked::

    rank 0: [0] 'gradients' '0.weight'[1] is 4.0, expected 2.0   ─▶   rank #: [#] 'gradients' ''[#] is #, expected #
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from harness.report.text import plural, seconds_text
from harness.verdict import Record

#: From which likeness on a fault is named, and from which on it is called very like.
LIKE, VERY_LIKE = 0.8, 0.97
_LONGEST = 300


@dataclass(frozen=True)
class Sight:
    """How a planted fault showed: the requirement, the cause ("" if not noted), the message, blanked and as it was."""

    requirement: str
    cause: str
    message: str
    line: str


@dataclass(frozen=True)
class Fault:
    """A planted fault: its name, what is wrong, where such a one was met, and how it showed."""

    name: str
    says: str
    origin: str
    seen: tuple[Sight, ...]

    @property
    def requirements(self) -> frozenset[str]:
        """What it was caught by."""
        return frozenset(sight.requirement for sight in self.seen)


@dataclass(frozen=True)
class Known:
    """What was measured, of which version and when; empty where nothing was. ``library``: how many faults there are."""

    version: str = ""
    measured: str = ""
    library: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @property
    def caught(self) -> str:
        """How many faults of those that can be told from right were caught."""
        return f"{self._figure('killed')} of {self._figure('faults', 'equivalent')}"

    @property
    def told(self) -> tuple[tuple[str, str], ...]:
        """The other figures, by what they are; those of whole runs only where faults were put before some."""
        ran = self._figure("in a run")
        runs = (
            ("first caught by what it breaks", f"{self._figure('attributed')} of {ran} tried in a whole run"),
            ("caught within a minute", f"{self._figure('within a minute')} of these {ran}"),
            ("median until a whole run's first red row", self._median("in a run")),
        )
        return (
            ("tried", f"{self._figure('faults')} of {self.library} faults that the project has"),
            ("told from right by nobody", self._figure("equivalent")),
            ("median until the first red row, by the requirement alone", self._median("alone")),
            *(runs if self.figures["in a run"] else ()),
        )

    def _median(self, how: str) -> str:
        return seconds_text(self.figures[f"median seconds {how}"])

    def _figure(self, name: str, less: str = "") -> str:
        return f"{self.figures[name] - (self.figures[less] if less else 0):g}"


@dataclass(frozen=True)
class Near:
    """The fault that a failure looks like, how much by its message, and how many other faults do just as much.

    ``is_same`` is whether the message is the fault's, numbers and all.
    """

    name: str
    says: str
    origin: str
    likeness: float
    is_same: bool
    others: int

    @property
    def sure(self) -> str:
        """How sure that is, in words."""
        much = "very much like" if self.likeness >= VERY_LIKE else "somewhat like"
        said = "its message is the same" if self.is_same else f"{much}, by its message: likeness {self.likeness:.2f}"
        looks = "look" if self.others > 1 else "looks"
        return f"{said}; {plural(self.others, 'other known fault')} {looks} as much like it" if self.others else said


@cache
def known() -> Known:
    """What comes with the package; nothing where the file is not there."""
    path = Path(__file__).with_name("known_faults.json")
    return known_in(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else Known()


def known_in(data: dict[str, Any]) -> Known:
    """The same of a JSON object that was read."""
    faults = tuple(
        Fault(
            one["id"], one["says"], one["origin"], tuple(Sight(a, b, blanked(c), _line(c)) for a, b, c in one["seen"])
        )
        for one in data["faults"]
    )
    return Known(data["suite_version"], data["measured"], data["library"], data["figures"], faults)


def blanked(message: str) -> str:
    """The first line of a message without its numbers, and without names that have dots or digits."""
    line = re.sub(r"'[^' ]*[.\d][^' ]*'", "''", _line(message))
    return re.sub(r"-?\d[\d.]*(?:e[+-]?\d+)?", "#", line)


def _line(message: str) -> str:
    return (message[: 2 * _LONGEST].splitlines() or [""])[0][:_LONGEST]


def nearest(records: Sequence[Record], failing: frozenset[str], among: Known | None = None) -> Near | None:
    """The fault whose message is likest to that of one of the rows, of its requirement, or else of its chapter.

    Of those that are equally like without numbers, the one that is likest with them; then the one that was caught by
    what fails in this run, and by little else.
    """
    faults = (known() if among is None else among).faults
    for near in (_is_of_requirement, _is_of_chapter):
        found = [
            (_likeness(record, sight), fault) for record in records for fault in faults for sight in near(record, fault)
        ]
        best = max((likeness for likeness, _ in found), default=(0.0, 0.0))
        if best[0] >= LIKE:
            same = {fault.name: fault for likeness, fault in found if likeness == best}
            fault = max(same.values(), key=lambda fault: _overlap(fault.requirements, failing))
            return Near(fault.name, fault.says, fault.origin, best[0], best[1] == 1, len(same) - 1)
    return None


def _is_of_requirement(record: Record, fault: Fault) -> list[Sight]:
    return [s for s in fault.seen if s.requirement == record.requirement and s.cause in ("", record.cause)]


def _is_of_chapter(record: Record, fault: Fault) -> list[Sight]:
    chapters = ((sight.requirement.partition("/")[0], sight) for sight in fault.seen)
    return [sight for chapter, sight in chapters if chapter == record.chapter and sight.cause in ("", record.cause)]


def _likeness(record: Record, sight: Sight) -> tuple[float, float]:
    """How like a message is without numbers; and with them, where it is enough like without."""
    likeness = _ratio(blanked(record.message), sight.message)
    return likeness, _ratio(_line(record.message), sight.line) if likeness >= LIKE else 0.0


@lru_cache(maxsize=4096)
def _ratio(a: str, b: str) -> float:
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    return matcher.ratio() if a and b and matcher.quick_ratio() >= 0.5 else 0.0


def _overlap(caught: frozenset[str], failing: frozenset[str]) -> float:
    return len(caught & failing) / max(1, len(caught | failing))
