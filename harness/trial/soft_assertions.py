"""Soft assertions: all comparisons of an example are made and reported, not only those up to the first that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.vendor.bounds import NotClaimed
from harness.worlds.base import SubjectFailure


class SoftAssertions:
    """Holds back the first failure of an example: ``pending``, None if there is none."""

    def __init__(self) -> None:
        self.pending: SubjectFailure | None = None
        self._is_collecting = False

    def fail(self, failure: SubjectFailure) -> None:
        """Keep the failure if it is the first, and raise it at once unless failures are being collected."""
        __tracebackhide__ = True
        self.pending = self.pending or failure
        if not self._is_collecting:
            self.raise_pending()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """In this block, ``fail`` does not raise; the end of the block does, in place of any error that followed."""
        self._is_collecting, self.pending = True, None
        try:
            yield
        except (Exception, NotClaimed):
            self.raise_pending()
            raise
        finally:
            self._is_collecting = False
        self.raise_pending()

    def raise_pending(self) -> None:
        """Raise the failure that was held back, if any."""
        __tracebackhide__ = True
        pending, self.pending = self.pending, None
        if pending is not None:
            raise pending
