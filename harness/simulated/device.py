"""``torch.simulated``: what torch, FSDP and the suites ask of a device's module. Importing this file loads the device.

import harness.simulated.device
x = torch.ones(3, device="simulated")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from harness.simulated.build import library

NAME = "simulated"
#: torch's number of device types that a plugin brings, and the number of the first group's stream (csrc/clocks.h).
_TYPE, _FIRST_OF_GROUPS = 20, 100


class Event(torch.Event):
    """As CUDA's: a ``torch.Event`` by its class, of which a plain ``torch.Stream`` takes no notice.

    Events that streams record are plain: torch's FSDP has plain streams wait for some that on CUDA are not.
    """

    def __new__(cls, enable_timing: bool = False) -> Event:
        """torch's class takes its arguments here."""
        return super().__new__(cls, NAME, enable_timing=enable_timing)

    def __init__(self, enable_timing: bool = False) -> None:
        self._recorded = torch.Event(NAME, enable_timing=enable_timing)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Stand for what a stream, or the current one, has been given."""
        self._recorded.record(stream or current_stream())

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Have a stream, or the current one, wait for it."""
        self._recorded.wait(stream or current_stream())

    def query(self) -> bool:
        """Whether that has been done."""
        return self._recorded.query()

    def synchronize(self) -> None:
        """Wait for it."""
        self._recorded.synchronize()

    def elapsed_time(self, later: Any) -> float:
        """Milliseconds from this to a later event."""
        return self._recorded.elapsed_time(later._recorded)


class Stream(torch.Stream):
    """As CUDA's: it waits for events of either class."""

    def wait_event(self, event: torch.Event) -> None:
        """Begin later work after the event."""
        event.wait(self)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """An event, a new one or this, that stands for what this stream has been given."""
        made = torch.Event(NAME) if event is None else event
        made.record(self)
        return made


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


#: Whether a device was chosen in this process.
_is_chosen = False


def is_initialized() -> bool:
    """Whether this process has chosen a device or asked for memory; if not, torch chooses one for it."""
    is_used: bool = torch.ops.simulated.is_used()
    return _is_chosen or is_used


def _lazy_init() -> None:
    """Nothing: but only of a device that has this, torch 2.11 believes that it has been used, and waits for it."""


def __getattr__(name: str) -> Any:
    """``_initialized``, which activation checkpointing asks for before it keeps a device's random numbers."""
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def device_count() -> int:
    """How many devices there are: 8, or what SIMULATED_DEVICES says, up to 16."""
    count: int = torch.ops.simulated.device_count()
    return count


def current_device() -> int:
    """The device that the calling thread uses."""
    return torch.accelerator.current_device_index()


def set_device(device: Any) -> None:
    """Have the calling thread use another device."""
    global _is_chosen
    torch.accelerator.set_device_index(_index(device))
    _is_chosen = True


@contextmanager
def device(which: Any) -> Iterator[None]:
    """Use another device within the block."""
    before = current_device()
    set_device(before if which is None else which)
    try:
        yield
    finally:
        set_device(before)


#: What has to be done before a host may wait for a device: collectives that were not waited for yet.
before_waiting: list[Callable[[], None]] = []


def synchronize(device: Any = None) -> None:
    """Wait for all streams of a device."""
    for act in before_waiting:
        act()
    torch.accelerator.synchronize(_index(device))


def current_stream(device: Any = None) -> Stream:
    """The stream to which the calling thread gives its work."""
    current = torch.accelerator.current_stream(_index(device))
    return Stream(stream_id=current.stream_id, device_index=current.device_index, device_type=_TYPE)


def stream_of_group(place: int, device: int) -> torch.Stream:
    """The stream of one of the process groups that there are, which is not handed out."""
    return torch.Stream(stream_id=_FIRST_OF_GROUPS + place, device_index=device, device_type=_TYPE)


def default_stream(device: Any = None) -> Stream:
    """The stream that is current where no other was chosen."""
    return Stream(stream_id=0, device_index=_index(device), device_type=_TYPE)


def set_stream(stream: torch.Stream) -> None:
    """Give later work of the calling thread to that stream."""
    torch.accelerator.set_stream(stream)


def stream(which: torch.Stream | None) -> Any:
    """Give work to another stream within the block."""
    return nullcontext() if which is None else which


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that used the device: no harm here. ``torch.manual_seed`` asks."""
    return False


def manual_seed(seed: int) -> None:
    """Seed the random numbers of the current device."""
    _generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed those of all devices."""
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def get_rng_state(device: Any = NAME) -> Tensor:
    """The state of a device's random numbers: 16 bytes, seed and offset."""
    return _generator(device).get_state()


def set_rng_state(state: Tensor, device: Any = NAME) -> None:
    """Take up a state that ``get_rng_state`` gave."""
    _generator(device).set_state(state)


def initial_seed() -> int:
    """The seed of the current device."""
    return _generator(None).initial_seed()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may compute in."""
    return [torch.bfloat16, torch.float16]


def _index(device: Any) -> int:
    if device is None or isinstance(device, int):
        return current_device() if device is None or device < 0 else device
    index = torch.device(device).index
    return current_device() if index is None else index


def _generator(device: Any) -> torch.Generator:
    generator: torch.Generator = torch.ops.simulated.generator(_index(device))
    return generator


def _load() -> None:
    torch.ops.load_library(str(library()))
    torch.utils.rename_privateuse1_backend(NAME)  # type: ignore[attr-defined]
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()  # type: ignore[attr-defined]


_load()
