"""A collective that fails: what a rank's n-th call of a block raises, in either world."""

from __future__ import annotations

from harness.collective_trace.recorder import Entry


class CollectiveFailed(RuntimeError):
    """Raised in place of a collective's return, on the rank that called it."""


class FailingTrace(list[Entry]):
    """A trace that raises CollectiveFailed when collective ``at``, counted from 0, is noted in it; once."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def append(self, noted: Entry) -> None:
        """Note a collective, or fail."""
        super().append(noted)
        if len(self) == self._at + 1:
            raise CollectiveFailed(f"collective {self._at} was made to fail")
