"""Device work of a known length, clocks, and collectives that take so long: what overlap is measured with.

A rank that is to take 4 ms finds how many rows of a narrow sum take 1 ms, say 20 000, and does that four times.

Only ``torch.get_device_module`` names the device, and of its module only what FSDP needs itself is used: streams,
events and ``synchronize``. On a CPU, where torch's streams are empty words, everything happens at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suites.kit.own_collectives import OwnGather, OwnReduction

#: Columns of a sum: so few that it leaves most of a device to others.
WIDTH = 8
#: Rows at first, and at most: 64 MiB of numbers.
FEWEST, MOST = 2**10, 2**21
#: How many ms one sum should take at least: long enough that launching it is nothing beside it.
STEP = 1.0
#: How many measurements there are of what is measured once.
TRIES = 5


class Clock:
    """Times of a device, by events on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.streams: Any = torch.get_device_module(device)
        self._at_once = device.type == "cpu"

    def milliseconds(self, act: Callable[[], Any]) -> float:
        """From when the device is done with all before until its current stream is done with ``act``."""
        self.streams.synchronize()
        if self._at_once:
            started = time.perf_counter()
            act()
            return (time.perf_counter() - started) * 1000
        start, end = (self.streams.Event(enable_timing=True) for _ in range(2))
        start.record()
        act()
        end.record()
        self.streams.synchronize()
        took: float = start.elapsed_time(end)
        return took

    def usually(self, act: Callable[[], Any]) -> float:
        """The median of several measurements, the first not counted."""
        act()
        return median(self.milliseconds(act) for _ in range(TRIES))


class Work:
    """Sums over long, narrow columns, some times over: one number after the other, on next to nothing of a device."""

    def __init__(self, device: torch.device, rows: int, times: int = 1) -> None:
        self._numbers = torch.ones(rows, WIDTH, device=device)
        self._sums = torch.empty_like(self._numbers)
        self._times = times

    def another(self) -> Work:
        """As much work on memory of its own, for a stream that is busy while this one's is."""
        return Work(self._numbers.device, len(self._numbers), self._times)

    def __call__(self) -> None:
        """Have the current stream do it."""
        with torch.no_grad():
            for _ in range(self._times):
                torch.cumsum(self._numbers, 0, out=self._sums)


def work_of(clock: Clock, device: torch.device, milliseconds: float) -> Work:
    """Work that takes about so long here."""
    rows = FEWEST
    took = clock.usually(Work(device, rows))
    while took < STEP and rows < MOST:
        rows *= 2
        took = clock.usually(Work(device, rows))
    return Work(device, rows, max(1, round(milliseconds / took)))


class _Landing(dist.Work):
    """What a delayed collective answers: to wait is to have the current stream wait. Keeps its tensors until then."""

    def __init__(self, streams: Any, done: Any, tensors: tuple[Tensor, ...]) -> None:
        super().__init__()
        self._streams, self._done, self._tensors = streams, done, tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Later work of the current stream begins when the collective is over."""
        self._streams.current_stream().wait_event(self._done)
        self._tensors = ()
        return True


class Delay:
    """Something that takes as long as ``work`` while it is delayed; ``calls`` counts those that were."""

    def __init__(self, work: Work) -> None:
        self.is_delayed = False
        self.calls = 0
        self._work = work

    def delay(self) -> None:
        """Keep the current stream busy, if delayed."""
        if self.is_delayed:
            self._work()
            self.calls += 1


class Delayed(Delay):
    """A collective on a stream of its own, as those of a device's process group are, over ``work`` later if delayed.

    Two that are under way at once need a work each: it writes to its memory.
    """

    def __init__(self, streams: Any, work: Work) -> None:
        super().__init__(work)
        self._streams, self._beside = streams, streams.Stream()

    def run(self, collective: Any, tensors: tuple[Tensor, ...], group: Any, is_async: bool) -> _Landing | None:
        """After what the current stream has been given so far."""
        self._beside.wait_stream(self._streams.current_stream())
        with self._streams.stream(self._beside):
            self.delay()
            collective(*tensors, group=group)
        landing = _Landing(self._streams, self._beside.record_event(), tensors)
        if is_async:
            return landing
        landing.wait()
        return None


class DelayedGather(Delayed, OwnGather):
    """An all-gather."""


class DelayedReduction(Delayed, OwnReduction):
    """A reduce-scatter."""


class DelayedHook(Delay):
    """What is to be done to what an all-reduce gave: nothing, or work that stands for the all-reduce, on its stream."""

    def __call__(self, part: Tensor) -> None:
        """After an all-reduce."""
        self.delay()
