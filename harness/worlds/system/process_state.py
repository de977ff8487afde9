"""What a program may change in its process for good; a worker that outlives a test must not carry it into the next.

Where a program calls ``os.umask(0)`` and patches ``time.time``, that is noted, and its process is not used again::

    changes(before, process_state()) == ["umask", "time.time"]
"""

from __future__ import annotations

import atexit
import gc
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from harness.worlds.system.process_tree import children

_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_ALL_SIGNALS = sorted(signal.valid_signals())
_SIGNALS = ("SigBlk:", "SigIgn:", "SigCgt:")
#: Whose functions and classes must stay what they are: what tests like to replace.
_OWNERS: tuple[Any, ...] = (
    time, os, torch, torch.Tensor, torch.nn.Module, torch.nn.functional, dist, distributed_c10d,
)  # fmt: skip


def process_state() -> dict[str, Any]:
    """The state of this process as far as it outlives a program."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "gradient mode": torch.is_grad_enabled(),
        "environment": dict(os.environ),
        "working directory": _working_directory(),
        "umask": _umask(),
        "sys.path": list(sys.path),
        "signal handlers": _signal_handlers(),
        "resource limits": [resource.getrlimit(limit) for limit in _LIMITS],
        "recursion limit": sys.getrecursionlimit(),
        "garbage collection": gc.isenabled(),
        "standard streams": (sys.stdout, sys.stderr, [_target(str(number)) for number in range(3)]),
        "open files": _open_files(),
        "functions": [dict(vars(owner)) for owner in _OWNERS],
        "Python threads": threading.active_count(),
        "exit handlers": atexit._ncallbacks(),
        "child processes": sorted(children()),
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs, in words."""
    names = [name for name in after if name not in ("open files", "functions") and after[name] != before[name]]
    if after["open files"] - before["open files"]:  # fewer is no harm: a process group takes its own with it
        names.append("open files")
    for owner, old, new in zip(_OWNERS, before["functions"], after["functions"], strict=True):
        replaced = (name for name, value in old.items() if new.get(name) is not value and callable(value))
        names += [f"{owner.__name__}.{name}" for name in replaced]
    return names


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _signal_handlers() -> list[Any]:
    """As Python knows them, and as the system does: libraries install some behind Python's back."""
    handlers: list[Any] = [signal.getsignal(number) for number in _ALL_SIGNALS]
    with suppress(OSError), open("/proc/self/status") as status:
        handlers += [line for line in status if line.startswith(_SIGNALS)]
    return handlers


def _open_files() -> Counter[str]:
    """Files and pipes by name, without sockets and devices: a process group and a driver open these by themselves."""
    with suppress(OSError):
        targets = [_target(name) for name in os.listdir("/proc/self/fd") if not _is_device(int(name))]
        return Counter(target for target in targets if target and not target.startswith(("socket:", "anon_inode:")))
    return Counter()


def _is_device(descriptor: int) -> bool:
    with suppress(OSError):
        return stat.S_ISCHR(os.fstat(descriptor).st_mode)
    return False


def _target(descriptor: str) -> str:
    """What a descriptor stands for; "" for one that is closed, or where the system does not tell."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""
