"""What is known of this version's own power to find faults, and which known fault a failure looks like.

``known_faults.json`` comes with the package and is measured with each release: which planted faults were caught, and
with what message each. A message is compared with numbers and dotted names blanked::

    rank 0: [0] 'gradients' '0.weight'[1] is 4.0, expected 2.0   ─▶   rank #: [#] 'gradients' ''[#] is #, expected #
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from harness.report.text import seconds_text
from harness.verdict import Record

#: From which likeness on a fault is named, and from which on it is called very like.
LIKE, VERY_LIKE = 0.8, 0.97
_LONGEST = 300


@dataclass(frozen=True)
class Sight:
    """How a planted fault showed: which requirement failed, by what cause ("" if not noted), its message, blanked."""

    requirement: str
    cause: str
    message: str


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
        """The other figures, by what they are."""
        ran = self._figure("in a run")
        return (
            ("tried", f"{self._figure('faults')} of {self.library} faults that the project has"),
            ("told from right by nobody", self._figure("equivalent")),
            (
                "first caught by what it breaks",
                f"{self._figure('attributed')} of {ran} tried in a whole run",
            ),
            ("caught within a minute", f"{self._figure('within a minute')} of these {ran}"),
            ("median until the first red row", self._medians()),
        )

    def _medians(self) -> str:
        alone, run = (seconds_text(self.figures[f"median seconds {how}"]) for how in ("alone", "in a run"))
        return f"{alone} by the requirement alone, {run} in a whole run"

    def _figure(self, name: str, less: str = "") -> str:
        return f"{self.figures[name] - (self.figures[less] if less else 0):g}"


@dataclass(frozen=True)
class Near:
    """The fault that a failure looks like, how much by its message, and how many other faults do just as much."""

    name: str
    says: str
    origin: str
    likeness: float
    others: int

    @property
    def sure(self) -> str:
        """How sure that is, in words."""
        much = "very much like" if self.likeness >= VERY_LIKE else "somewhat like"
        return f"{much}, by its message: likeness {self.likeness:.2f}" + (
            f"; {self.others} other known fault{'s look' if self.others > 1 else ' looks'} as much like it"
            if self.others
            else ""
        )


@cache
def known() -> Known:
    """What comes with the package; nothing where the file is not there."""
    path = Path(__file__).with_name("known_faults.json")
    return known_in(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else Known()


def known_in(data: dict[str, Any]) -> Known:
    """The same of a JSON object that was read."""
    faults = tuple(
        Fault(one["id"], one["says"], one["origin"], tuple(Sight(a, b, blanked(c)) for a, b, c in one["seen"]))
        for one in data["faults"]
    )
    return Known(data["suite_version"], data["measured"], data["library"], data["figures"], faults)


def blanked(message: str) -> str:
    """The first line of a message without its numbers, and without names that have dots or digits."""
    line = (message[: 2 * _LONGEST].splitlines() or [""])[0][:_LONGEST]
    line = re.sub(r"'[^' ]*[.\d][^' ]*'", "''", line)
    return re.sub(r"-?\d[\d.]*(?:e[+-]?\d+)?", "#", line)


def nearest(record: Record, failing: frozenset[str], among: Known | None = None) -> Near | None:
    """The fault whose message is likest, of the same requirement, or else of the same chapter, and the same cause.

    Of those that are equally like, the one that was caught by what fails in this run, and by little else.
    """
    message = blanked(record.message)
    faults = (known() if among is None else among).faults
    for near in (_is_of_requirement, _is_of_chapter):
        likes = [(_likeness(message, fault, near(record, fault)), fault) for fault in faults]
        best = max((likeness for likeness, _ in likes), default=0.0)
        if best >= LIKE:
            same = [fault for likeness, fault in likes if likeness == best]
            fault = max(same, key=lambda fault: _overlap(fault.requirements, failing))
            return Near(fault.name, fault.says, fault.origin, best, len(same) - 1)
    return None


def _is_of_requirement(record: Record, fault: Fault) -> list[Sight]:
    return [s for s in fault.seen if s.requirement == record.requirement and s.cause in ("", record.cause)]


def _is_of_chapter(record: Record, fault: Fault) -> list[Sight]:
    chapters = ((sight.requirement.partition("/")[0], sight) for sight in fault.seen)
    return [sight for chapter, sight in chapters if chapter == record.chapter and sight.cause in ("", record.cause)]


def _likeness(message: str, fault: Fault, seen: list[Sight]) -> float:
    return max((_ratio(message, text) for text in {sight.message for sight in seen}), default=0.0)


@lru_cache(maxsize=4096)
def _ratio(a: str, b: str) -> float:
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    return matcher.ratio() if a and b and matcher.quick_ratio() >= LIKE else 0.0


def _overlap(caught: frozenset[str], failing: frozenset[str]) -> float:
    return len(caught & failing) / max(1, len(caught | failing))
