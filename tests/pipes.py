"""Named pipes, by which a process tells a test that it has come to the point: no sleeps, no polling.

with named_pipe(tmp_path / "pipe") as pipe:     # the other process: Path(…).write_text("ready")
    assert heard(pipe) == "ready"
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import GUARD


@contextmanager
def named_pipe(path: Path) -> Iterator[int]:
    """A new pipe at this path, open for both ends, so that neither opening nor closing it blocks."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    try:
        yield pipe
    finally:
        os.close(pipe)


def heard(pipe: int) -> str:
    """What is written into the pipe next, at most 100 bytes; fails if nothing is."""
    assert select.select([pipe], [], [], GUARD)[0], "nothing was written into the pipe"
    return os.read(pipe, 100).decode()
