"""Process groups and plugins of devices that lack a wait, free memory early, or report what is not so.

Each is the simulated device with one thing replaced in every rank, by an environment variable that names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.simulated.backend import backend as simulated
from harness.vendor import Backend
from tests.mutants import name_of

_VARIABLE = "SIMULATED_FAULT"
FAULTS: dict[str, Callable[[], None]] = {}


def faulty(requirement: str) -> Callable[[Callable[[], None]], Backend]:
    """A backend in whose ranks the decorated function has been called; ``requirement`` must kill it."""

    def decorate(fault: Callable[[], None]) -> Backend:
        name = fault.__name__
        FAULTS[name] = fault
        imports = (*simulated.imports, __name__)
        return replace(simulated, name=name_of(requirement), imports=imports, environment={_VARIABLE: name})

    return decorate


def _group() -> Any:
    from harness.simulated import process_group  # loads the device

    return process_group


def _device() -> Any:
    from harness.simulated import device  # loads it

    return device


# Process groups.


@faulty("parity/exact")
def starts_at_once() -> None:
    """A collective does not wait for what the current stream still computes."""
    group = _group()

    def accounted(self: Any, device: int, call: Any) -> float:
        with self.stream(device):
            torch.ops.simulated.charge(device, call.name, list(call.inputs), list(call.outputs), 0.0)
            time: float = torch.ops.simulated.stream_time(device)
        return time

    group.SimulatedGroup._accounted = accounted


@faulty("parity/exact")
def waits_for_nothing() -> None:
    """``Work.wait()`` returns with the current stream as it was."""
    group = _group()

    def wait(self: Any, timeout: Any = None) -> bool:
        self.group.finish(self)
        self.kept = ()
        return True

    group.SimulatedWork.wait = wait


@faulty("collectives/premul-sum")
def ignores_the_factor() -> None:
    """PREMUL_SUM is SUM."""
    from harness.process_group import arithmetic

    arithmetic._factor = lambda op: 1.0  # type: ignore[attr-defined]


# Plugins.


@faulty("overlap/forward")
def has_one_stream() -> None:
    """Whatever stream is asked for is the default one."""
    device = _device()
    made = device.Stream
    device.Stream = lambda *_, **__: made(stream_id=0, device_index=device.current_device(), device_type=device._TYPE)


@faulty("offload/pinned-memory")
def pins_nothing() -> None:
    """``pin_memory`` is taken for a wish."""
    _device()
    Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign,assignment]


@faulty("memory/on-device")
def counts_too_much() -> None:
    """The allocator's statistics never go down."""
    right, highest = torch.accelerator.memory_allocated, [0]

    def most(*_: Any) -> int:
        highest[0] = max(highest[0], right())
        return highest[0]

    torch.accelerator.memory_allocated = most


@faulty("memory/on-device")
def counts_nothing() -> None:
    """The allocator's statistics are zero."""
    torch.accelerator.memory_allocated = torch.accelerator.max_memory_allocated = lambda *_: 0


@faulty("checkpoint/random-numbers")
def draws_the_same() -> None:
    """The state of random numbers cannot be set, and is what it was."""
    _device().set_rng_state = lambda state, device=None: None


if _VARIABLE in os.environ:  # in a rank
    FAULTS[os.environ[_VARIABLE]]()
