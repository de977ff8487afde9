"""Which rank is running, kept where it outlives the process: in a small file that the process maps.

When a process that carries all ranks of a thread world dies, it can no longer say which rank was running. So the
scheduler writes the number down each time the run token passes, and the controller reads it afterwards::

    mark_running(2)        in the worker, when rank 2 gets the run token
    read_mark(path) == 2   in the controller, after the worker was killed
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_FORM = struct.Struct("<i")
_NONE = -1
_mapped: mmap.mmap | None = None


def open_mark(path: Path) -> None:
    """Start keeping the mark in ``path``; until then ``mark_running`` does nothing."""
    global _mapped
    path.write_bytes(_FORM.pack(_NONE))
    with open(path, "r+b") as file:
        _mapped = mmap.mmap(file.fileno(), _FORM.size)


def mark_running(rank: int | None) -> None:
    """Write down that ``rank`` is running now, or none."""
    if _mapped is not None:
        _FORM.pack_into(_mapped, 0, _NONE if rank is None else rank)


def read_mark(path: Path) -> int | None:
    """The rank that was running last, or None if none was, or if that was not written down."""
    try:
        (rank,) = _FORM.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return None if rank < 0 else int(rank)
