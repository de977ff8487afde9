"""A c10d store for ranks in lockstep: waiting for a key hands the run token on instead of blocking the thread."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from harness.worlds.threads.scheduler import Latch, Lockstep


class LockstepStore(dist.Store):
    """Keys and bytes, shared by all ranks of one run. Nothing listens anywhere."""

    def __init__(self, lockstep: Lockstep) -> None:
        super().__init__()
        self._lockstep = lockstep
        self._data: dict[str, bytes] = {}
        self._waiting: list[tuple[frozenset[str], Latch]] = []

    def set(self, key: str, value: str | bytes) -> None:
        """Set ``key`` and wake the ranks that waited for it."""
        self._data[key] = value.encode() if isinstance(value, str) else bytes(value)
        for keys, latch in list(self._waiting):
            if all(k in self._data for k in keys):
                self._waiting.remove((keys, latch))
                self._lockstep.open(latch)

    def get(self, key: str) -> bytes:
        """The value of ``key``, once it has one."""
        self.wait([key])
        return self._data[key]

    def add(self, key: str, value: int) -> int:
        """Add to a counter that starts at 0; the new count."""
        total = int(self._data.get(key, b"0")) + value
        self.set(key, str(total))
        return total

    def check(self, keys: list[str]) -> bool:
        """Whether all of ``keys`` are set."""
        return all(key in self._data for key in keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set ``key`` to ``desired`` if it holds ``expected``, or is missing and "" is expected; what it holds then."""
        wanted = expected.encode() if isinstance(expected, str) else bytes(expected)
        if self._data.get(key, b"") == wanted:
            self.set(key, desired)
        return self._data.get(key, wanted)

    def append(self, key: str, value: str | bytes) -> None:
        """Append to ``key``."""
        self.set(key, self._data.get(key, b"") + (value.encode() if isinstance(value, str) else bytes(value)))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of ``keys``, once all have one."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Set several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """``append``, ``multi_get`` and ``multi_set`` are there."""
        return True

    def delete_key(self, key: str) -> bool:
        """Forget ``key``; whether it was there."""
        return self._data.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many keys are set."""
        return len(self._data)

    #: The names under which torch's C++ side looks for the two methods above.
    deleteKey = delete_key
    getNumKeys = num_keys

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until ``keys`` are set. No timeout: a wait that cannot end is seen as a deadlock at once."""
        if self.check(keys):
            return
        latch = Latch()
        self._waiting.append((frozenset(keys), latch))
        self._lockstep.pass_until(latch, lambda: f"store wait for {', '.join(keys)}")

    def set_timeout(self, timeout: timedelta) -> None:
        """Accepted and without effect, see ``wait``."""

    @property
    def timeout(self) -> timedelta:
        """A long time; see ``wait``."""
        return timedelta(days=1)
