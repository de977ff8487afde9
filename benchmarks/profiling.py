"""Where the time of a step goes, by groups of functions: cProfile on torch's fake group, where nothing is waited for.

    a Python function    own time to the group of its file
    a C function         own time to the group of the Python function that called it, in a column of its own:
                         the kernels, allocations and dispatch that this code asks for

cProfile makes calls of Python functions dearer than they are, so shares lean towards Python; both subjects alike.
"""

from __future__ import annotations

import cProfile
import pstats
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from benchmarks.training import SUBJECTS, WARM_UP, Setup, Training, fake_ranks
from harness.vendor.load import load_implementation

#: The group of a file is the first whose part of a path it has.
GROUPS = (
    ("FSDP itself", ("fsdp/_fully_shard/", "torch/distributed/fsdp/", "reference_models/fsdp/")),
    ("DTensor and meshes", ("torch/distributed/tensor/", "torch/distributed/device_mesh", "torch/distributed/_mesh")),
    ("collectives", ("torch/distributed/",)),
    ("operators called from Python", ("torch/_ops.py", "torch/_library/")),
    ("dynamo's guards", ("torch/_dynamo/", "torch/compiler/")),
    ("profiler ranges", ("torch/autograd/profiler", "torch/profiler/")),
    ("optimizer", ("torch/optim/", "torch/utils/_foreach_utils")),
    ("autograd", ("torch/autograd/", "torch/_tensor.py")),
    ("modules and hooks", ("torch/nn/",)),
)
OTHER = "other"

#: Nothing but its callbacks is Python in it, so what is left of it is autograd's own work and the backward kernels.
_ENGINE = "run_backward"

Function = tuple[str, int, str]


@dataclass
class Breakdown:
    """Milliseconds a step: by group (own Python, C functions that it calls), and by function, dearest first."""

    total: float
    groups: dict[str, tuple[float, float]]
    functions: list[tuple[str, float, float]]  # name, calls a step, own time with the C functions that it calls


def breakdowns(setup: Setup, size: int, steps: int) -> dict[str, Breakdown]:
    """Profile ``steps`` steps of each subject, taken in turn, on rank 0 of ``size``."""
    with fake_ranks(size) as mesh:
        trainings = [Training(load_implementation(subject), mesh, setup) for subject in SUBJECTS]
        profilers = [cProfile.Profile() for _ in SUBJECTS]
        for number in range(WARM_UP[setup.net] + steps):
            for training, profiler in zip(trainings, profilers, strict=True):
                if number < WARM_UP[setup.net]:
                    training.step()
                else:
                    profiler.runcall(training.step)
    return {name: _sorted(pstats.Stats(profiler), steps) for name, profiler in zip(SUBJECTS, profilers, strict=True)}


def _sorted(stats: Any, steps: int) -> Breakdown:
    python: dict[Function, float] = defaultdict(float)
    native: dict[Function, float] = defaultdict(float)
    calls: dict[Function, int] = {}
    for function, (_, count, own, _, callers) in stats.stats.items():
        calls[function] = count
        if not _is_native(function):
            python[function] += own
        elif _ENGINE in function[2] or not callers:
            native[function] += own
        else:
            for caller, (_, _, share, _) in callers.items():
                native[caller] += share
    spent = {function: (python[function], native[function]) for function in {*python, *native}}
    return _broken_down(spent, calls, 1000 / steps)


def _broken_down(spent: dict[Function, tuple[float, float]], calls: dict[Function, int], scale: float) -> Breakdown:
    groups: dict[str, tuple[float, float]] = dict.fromkeys((*_names(), OTHER), (0.0, 0.0))
    for function, (python, native) in spent.items():
        name = group_of(function)
        groups[name] = (groups[name][0] + python * scale, groups[name][1] + native * scale)
    rows = [
        (_words(function), calls.get(function, 0) * scale / 1000, sum(parts) * scale)
        for function, parts in spent.items()
    ]
    total = sum(sum(parts) for parts in groups.values())
    return Breakdown(total, groups, sorted(rows, key=lambda row: -row[2]))


def group_of(function: Function) -> str:
    """The group whose time it is."""
    path, _, name = function
    if _ENGINE in name:
        return "autograd"
    return next((group for group, parts in GROUPS if any(part in path for part in parts)), OTHER)


def _names() -> list[str]:
    return [name for name, _ in GROUPS]


def _is_native(function: Function) -> bool:
    return function[0] == "~"


def _words(function: Function) -> str:
    """``reference_models/fsdp/parameters/param.py:201 show_unsharded``, from the package on."""
    path, line, name = function
    if _is_native(function):
        return name.strip("<>")
    parts = path.split("/")
    known = [place for place, part in enumerate(parts) if part in ("torch", "reference_models", "benchmarks")]
    return f"{'/'.join(parts[known[0] :] if known else parts[-1:])}:{line} {name}"
