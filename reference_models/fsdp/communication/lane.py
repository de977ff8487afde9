"""A stream beside the one that computes; a tree of modules gathers on one, and reduces on another.

computes    optimizer ─┬─ block 0 waits ─ copies out ─┬─ computes ────────── block 1 waits ─ copies out ─ computes
lane                   └─ gathers 0                   └─ gathers 1 meanwhile
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def passed(device: torch.device) -> Any:
    """An event after all that the current stream has been given; None on a CPU."""
    return None if device.type == "cpu" else torch.accelerator.current_stream().record_event()


class Lane:
    """The stream of a device; a CPU has none, and everything happens in the order in which it is written."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.Stream(device, priority=-1) if device.type != "cpu" else None
        self._beside: AbstractContextManager[Any] = nullcontext() if self._stream is None else self._stream
        self._lent: tuple[object, Any] | None = None
        self._lends = False

    def beside(self) -> AbstractContextManager[Any]:
        """Work of the block goes to this stream."""
        return self._beside

    def follow(self, event: Any = None) -> None:
        """Wait for an event, else for all that the current stream has been given."""
        if self._stream is not None:
            event = event or passed(self._stream.device)
            with self._stream:  # a torch.Stream's own wait_event waits for nothing if this is a torch.cuda.Event
                event.wait()

    def mark(self) -> Any:
        """An event after all that this stream has been given; None on a CPU."""
        return None if self._stream is None else self._stream.record_event()

    def lend(self, lends: bool) -> None:
        """Whether memory is taken back one gather later, so that one may begin before the last has been copied out."""
        self._lends = lends
        if self._lent is not None and not lends:
            self.follow(self._lent[1])
            self._lent = None

    def take_back(self, memory: object) -> None:
        """The current stream has read memory of this one, which is used again after that; the caller drops it."""
        if not self._lends or self._stream is None:
            self.follow()
            return
        before, self._lent = self._lent, (memory, passed(self._stream.device))
        if before is not None:
            self.follow(before[1])

    def lead(self, event: Any = None) -> None:
        """Have the current stream wait for an event of this one, else for all that this one has been given."""
        if self._stream is not None:
            torch.accelerator.current_stream().wait_event(event or self._stream.record_event())


#: Where there is no stream beside the current one, or it is not to be used.
HERE = Lane(torch.device("cpu"))
