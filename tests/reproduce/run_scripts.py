"""Run printed scripts one after the other: ``python -m tests.reproduce.run_scripts A.py B.py`` prints JSON.

Each runs as it is, but for its ranks, which are forked here and not spawned: importing torch anew in each of them would
take most of the time. ``{"A.py": [0, "tensors that differ, by rank: [0, 0]"], …}`` are exit status and output.
"""

from __future__ import annotations

import functools
import io
import json
import os
import runpy
import sys
import tempfile
import traceback

import torch


def run(path: str) -> tuple[int, str]:
    """A script's exit status, and what it and its ranks printed."""
    with tempfile.TemporaryFile("w+") as printed:
        before = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            runpy.run_path(path, run_name="__main__")
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        except Exception:
            status = 1
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os.dup2(before, 1)
            os.close(before)
        printed.seek(0, io.SEEK_SET)
        return status, printed.read()


if __name__ == "__main__":
    forked = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
    torch.multiprocessing.spawn = forked
    print(json.dumps({path: run(path) for path in sys.argv[1:]}))
