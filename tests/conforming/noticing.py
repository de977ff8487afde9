"""How often deviations occurred in this process: a subject whose deviation never occurs proves nothing.

Two ranks in threads that each reduce once, adding in reverse, leave ``{"adds in reverse": 2}``.
"""

from __future__ import annotations

import threading
from collections import Counter

_lock = threading.Lock()
_noticed: Counter[str] = Counter()


def noticed(deviation: str) -> None:
    """Count one more; from any thread."""
    with _lock:
        _noticed[deviation] += 1


def so_far() -> dict[str, int]:
    """What has been counted in this process, by all of its ranks."""
    with _lock:
        return dict(_noticed)
