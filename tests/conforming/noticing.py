"""How often habits were lived out in this process: an odd subject whose habit never shows proves nothing.

Two ranks in threads that each reduce once, adding in reverse, leave ``{"adds in reverse": 2}``.
"""

from __future__ import annotations

import threading
from collections import Counter

_lock = threading.Lock()
_noticed: Counter[str] = Counter()


def noticed(habit: str) -> None:
    """Count one more; from any thread."""
    with _lock:
        _noticed[habit] += 1


def so_far() -> dict[str, int]:
    """What has been counted in this process, by all of its ranks."""
    with _lock:
        return dict(_noticed)
