"""A device whose streams run side by side in virtual time: what a CPU lacks, for trying how overlap is judged.

Work of 8 ms on one stream and of 4 ms on another is over after 8 ms, and after 12 ms if one waited for the other.
torch's FSDP asks ``torch.cpu`` for streams as it asks any device's module: there they are empty words, and here they
keep count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from harness.vendor.backends import gloo
from harness.worlds.rank import Rank
from suites.communication import overlap_programs
from suites.communication.overlap import OverlapCase
from suites.communication.overlap_delays import Clock
from tests.mutants.devices.on_devices import computes_after_it
from tests.mutants.hooking import instead
from tests.mutants.making import mutant
from tests.mutants.passes.communication import without


class Device:
    """Streams, events and work, as a device's module has them; launching anything takes no time.

    Which stream is the current one each thread says for itself.
    """

    def __init__(self) -> None:
        self.done = 0.0  # all that was given before this moment is over
        self.latest = 0.0
        self._main, self._here = Stream(self), threading.local()

    def current_stream(self, device: Any = None) -> Stream:
        """Where work goes."""
        current: Stream = getattr(self._here, "stream", self._main)
        return current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Have work go there."""
        before, self._here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def synchronize(self, device: Any = None) -> None:
        """Wait for everything."""
        self.done = self.latest

    def work(self, milliseconds: float) -> None:
        """Keep the current stream busy."""
        stream = self.current_stream()
        stream.until(stream.ready + milliseconds)


class Stream:
    """When all that it was given is over."""

    def __init__(self, device: Device, priority: int = 0) -> None:
        self._device, self._ready = device, 0.0

    @property
    def ready(self) -> float:
        """That moment."""
        return max(self._ready, self._device.done)

    def until(self, moment: float) -> None:
        """Be busy until then, at least."""
        self._ready = max(self.ready, moment)
        self._device.latest = max(self._device.latest, self._ready)

    def wait_stream(self, other: Stream) -> None:
        """Go on when all that another was given so far is over."""
        self.until(other.ready)

    def wait_event(self, event: Event | None) -> None:
        """Go on when that has happened; what was never recorded has."""
        if event is not None:
            self.until(event.moment)

    def record_event(self) -> Event:
        """What happens when all that was given so far is over."""
        event = Event(self._device)
        event.record(self)
        return event


class Event:
    """A moment of a stream."""

    def __init__(self, device: Device, enable_timing: bool = False) -> None:
        self._device, self.moment = device, 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Happen when all that a stream was given so far is over."""
        self.moment = (stream or self._device.current_stream()).ready

    def elapsed_time(self, later: Event) -> float:
        """The ms between two."""
        return later.moment - self.moment


class VirtualClock(Clock):
    """Measures by events, as on a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._at_once = False


class VirtualWork:
    """Keeps the current stream busy, and writes to memory of its own, which two streams may not do at once."""

    def __init__(self, device: Device, milliseconds: float) -> None:
        self._device, self._milliseconds, self._over = device, milliseconds, 0.0

    def another(self) -> VirtualWork:
        """As much work on other memory."""
        return VirtualWork(self._device, self._milliseconds)

    def __call__(self) -> None:
        """Raises RuntimeError if what another stream writes is not over by then."""
        stream = self._device.current_stream()
        if stream.ready < self._over:
            raise RuntimeError(f"written at {stream.ready:g} ms, while another stream writes until {self._over:g} ms")
        self._device.work(self._milliseconds)
        self._over = stream.ready


@contextmanager
def virtual_device() -> Iterator[Device]:
    """Have this process's ``torch.cpu``, and what the programs of the chapter measure with, be virtual."""
    device = Device()
    names = {name: getattr(device, name) for name in ("current_stream", "stream", "synchronize")}
    kinds = {"Stream": partial(Stream, device), "Event": partial(Event, device)}
    tools = {"Clock": VirtualClock, "work_of": lambda clock, where, milliseconds: VirtualWork(device, milliseconds)}
    with patch.multiple(torch.cpu, **names, **kinds), patch.multiple(overlap_programs, **tools):
        yield device


def in_virtual_time(rank: Rank, case: OverlapCase, program: str) -> dict[str, float | int]:
    """What a program of the chapter measures there."""
    with virtual_device():
        measured: dict[str, float | int] = getattr(overlap_programs, program)(rank, case)
        return measured


# Subjects that hide nothing, and a backend that says it can.


def takes_turns(module: Any, setter: Callable[[Any], None], collective: Any) -> None:
    """A collective and what is computed have one stream between them."""
    streams = torch.get_device_module("cpu")
    setter(_InTurn(collective, streams, streams.current_stream()))


class _InTurn:
    """A collective that waits for all that is computed, and for which all later compute waits."""

    def __init__(self, collective: Any, streams: Any, compute: Any) -> None:
        self._collective, self._streams, self._compute = collective, streams, compute
        self.allocate = collective.allocate

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._streams.current_stream().wait_stream(self._compute)
        answer = self._collective(*args, **options)
        self._compute.wait_stream(self._streams.current_stream())
        return answer


def all_take_turns(module: Any) -> None:
    """Gathers and reductions, and what follows all-reduces."""
    instead("set_custom_all_gather", takes_turns)(module)
    instead("set_custom_reduce_scatter", takes_turns)(module)
    instead("set_all_reduce_hook", computes_after_it)(module)


one_after_the_other = mutant("one thing after the other", after=all_take_turns)
deaf_to_events = without("deaf to events", "set_post_optim_event")
claims_streams = replace(gloo, name="claims streams", lacks={**gloo.lacks, "streams": ""})
