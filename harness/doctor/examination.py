"""The examination: what is asked, for how long, and what was found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from harness.doctor.checks import Check, Finding, Status

#: How long one question may take, in seconds, and how many such the whole may take: a minute, by default.
PATIENCE = 20.0
_WHOLE = 3.0


class Refused(Exception):
    """The command line asks for what cannot be."""


@dataclass
class Examination:
    """What was found, in the order of asking, and facts about the subject as far as they are known.

    ``patience`` is how long a question may take, ``whole`` how long all of them (default: three such), in seconds;
    ``only`` are the ids of what is asked once the subject is loaded (default: all). ``notice`` is called with each
    finding as it comes.
    """

    implementation: str
    backend: str
    patience: float = PATIENCE
    whole: float = 0.0
    only: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    incomplete: bool = False
    notice: Callable[[Finding], object] = lambda found: None
    _began: float = 0.0

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self.whole = self.whole or _WHOLE * self.patience

    def ask(self, check: Check, why_not: str, tries: Callable[[float], Finding]) -> None:
        """Try one check within the seconds that are given, or say why not."""
        if not self.wants(check.id):
            return
        if why_not := why_not or self.too_late():
            self.leave_out(check, why_not)
            return
        began = time.monotonic()
        found = tries(min(self.patience, self.left))
        if found.is_fault and (why_not := self.too_late()):  # it had less time than it may take
            self.leave_out(check, why_not)
            return
        self.add(replace(found, seconds=round(time.monotonic() - began, 3)))

    def leave_out(self, check: Check, why: str) -> None:
        """Say why a check was not tried."""
        self.add(Finding(check, Status.NOT_TRIED, why))

    def add(self, found: Finding) -> None:
        """Keep a finding, and tell it at once."""
        self.findings.append(found)
        self.notice(found)

    def too_late(self) -> str:
        """Why nothing more is asked when the time of all is over; "" while it is not."""
        if self.left > 0:
            return ""
        self.incomplete = True
        return f"{self.whole:g} s were over: give more with --patience"

    def wants(self, name: str) -> bool:
        """Whether a check is to be asked."""
        return not self.only or name in self.only

    def is_broken(self, check: Check) -> bool:
        """Whether a check found something missing or wrong."""
        return any(found.is_fault for found in self.findings if found.check.id == check.id)

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """How many seconds are left of the whole."""
        return self.whole - self.seconds
