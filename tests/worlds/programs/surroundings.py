"""What a program finds in its process, to see whether the one before has spoilt it."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from harness.worlds.rank import Rank
from tests.worlds.programs.deeds import held


def looks_around(rank: Rank) -> dict[str, Any]:
    """What a program finds in its process, in plain data; the same for each that is unharmed."""
    total = torch.full((3,), float(rank.number + 1))
    dist.all_reduce(total)
    return {
        "total": total,
        "directory": os.getcwd(),
        "default dtype": torch.get_default_dtype(),
        "environment": sorted(name for name in os.environ if name.startswith("FSDP_")),
        "paths": list(sys.path),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "limits": [resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)],
        "recursion": sys.getrecursionlimit(),
        "collects garbage": gc.isenabled(),
        "functions": [str(function) for function in (time.time, time.monotonic, time.sleep)],
        "all_reduce": dist.all_reduce.__qualname__,
        "mask": _mask(),
        "output": [os.path.basename(os.readlink(f"/proc/self/fd/{number}")) for number in range(3)],
        "held": len(held),
    }


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
