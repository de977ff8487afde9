"""Reading what a rank's process has written, which by now may be anything: a pipe without an end, a link elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: Path) -> BinaryIO:
    """The file, opened without waiting. Raises OSError if it is no regular file."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a file of ours")
    return file
