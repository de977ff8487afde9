"""A collective that fails: what a rank's n-th call of a block raises, in either world."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.ledger import Entry


class CollectiveFailed(RuntimeError):
    """Raised in place of a collective's return, on the rank that called it."""


class Fuse(list[Entry]):
    """A ledger that raises CollectiveFailed when collective ``at``, counted from 0, is noted in it; once."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def append(self, noted: Entry) -> None:
        """Note a collective, or fail."""
        super().append(noted)
        if len(self) == self._at + 1:
            raise CollectiveFailed(f"collective {self._at} was made to fail")

    def __iadd__(self, noted: Iterable[Any]) -> Fuse:  # type: ignore[override,misc]
        for each in noted:
            self.append(each)
        return self
