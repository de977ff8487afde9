"""Output that nothing reads any more, as behind ``| head -1``."""

from __future__ import annotations

import os

#: What is said of it, behind who says it.
NO_READER = "what reads its output has gone (broken pipe), so it ends here; redirect the output to a file to keep it"


def drop_output() -> None:
    """Let what is still printed to stdout go nowhere, also what is flushed at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
