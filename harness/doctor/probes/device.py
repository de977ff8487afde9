"""Probes of the device itself: its module, streams and events, memory and random state.

A stream that only pretends to order work is seen where work takes time: side stream writes 1 after long work, and the
current stream, which was told to wait for it, reads 1, not the 0 from before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.doctor.probes.answer import Here, NotTried, Probe, require

_NUMEL = 1 << 20


def module(here: Here) -> str:
    """Row 1."""
    found = getattr(torch, here.device_type, None)
    if found is None:
        raise AttributeError(f"torch has no attribute {here.device_type!r}")
    require(here.module is found, f"torch.get_device_module gives {here.module!r}, not torch.{here.device_type}")
    return f"torch.{here.device_type}"


def accelerator(here: Here) -> str:
    """Row 4."""
    count = here.module.device_count()
    if not count:
        raise RuntimeError(f"torch.{here.device_type}.device_count() is 0: no such device is visible here")
    seen = torch.accelerator.current_accelerator()
    if seen is None or not torch.accelerator.is_available():
        raise RuntimeError(f"torch.accelerator sees no device, torch.{here.device_type} sees {count}")
    require(seen.type == here.device_type, f"torch.accelerator sees {seen.type!r}, not {here.device_type!r}")
    counted = torch.accelerator.device_count()
    require(counted == count, f"torch.accelerator counts {counted} devices, torch.{here.device_type} {count}")
    return f"{count} × {seen.type}"


def selecting(here: Here) -> str:
    """Row 2."""
    here.module.is_initialized()
    count = here.module.device_count()
    require(isinstance(count, int) and count > 0, f"device_count() is {count!r}, not a number above 0")
    here.module.set_device(0 if here.device_type != "cpu" else "cpu")
    return f"{count} × {here.device_type}"


def current_device(here: Here) -> str:
    """Row 3."""
    last = here.module.device_count() - 1
    for index in dict.fromkeys((last, 0)):
        here.module.set_device(index)
        got = here.module.current_device()
        require(type(got) is int and got == index, f"current_device() is {got!r} after set_device({index})")
        where = torch.empty(1, device=here.device_type).device
        require(where.index == index, f"a tensor made after set_device({index}) is on {where}")
    return ""


def streams(here: Here) -> str:
    """Row 5."""
    before = here.module.current_stream()
    for made in (here.module.Stream(), here.module.Stream(priority=-1)):
        with here.module.stream(made):
            inside = here.module.current_stream()
            require(inside == made, f"inside stream({made}) the current stream is {inside}")
        after = here.module.current_stream()
        require(after == before, f"after a block of stream() the current stream is {after}, not {before}")
    return ""


def ordering(here: Here) -> str:
    """Row 6."""
    _streams_or_not_tried(here)
    for name, wait in _WAITS.items():
        side, current = here.module.Stream(), here.module.current_stream()
        tensor = torch.zeros(_NUMEL, device=here.device)
        side.wait_stream(current)
        with here.module.stream(side):
            work_long(here.device)
            tensor.fill_(1)
        wait(current, side)
        got = tensor.clone()
        here.module.synchronize()
        require(bool((got == 1).all()), f"after {name} the waiting stream read what was there before")
    return ""


_WAITS: dict[str, Callable[[Any, Any], object]] = {
    "wait_stream(side)": lambda current, side: current.wait_stream(side),
    "wait_event(side.record_event())": lambda current, side: current.wait_event(side.record_event()),
}


def events(here: Here) -> str:
    """Row 7."""
    _streams_or_not_tried(here)
    side, event = here.module.Stream(), here.module.Event()
    tensor = torch.zeros(_NUMEL, device=here.device)
    arrived = _host_memory(tensor)
    side.wait_stream(here.module.current_stream())
    with here.module.stream(side):
        work_long(here.device)
        tensor.fill_(2)
        arrived.copy_(tensor, non_blocking=True)
        event.record()
    event.synchronize()
    require(bool((arrived == 2).all()), "after record() and synchronize() a copy to the host had not arrived")
    here.module.current_stream().wait_event(event)
    require(bool((tensor.clone() == 2).all()), "after wait_event() the current stream read what was there before")
    return ""


def accelerator_stream(here: Here) -> str:
    """Row 8."""
    got = torch.accelerator.current_stream()
    require(got.device.type == here.device_type, f"it is a stream of {got.device}")
    return ""


def pinned(here: Here) -> str:
    """Row 25."""
    host = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    require(host.is_pinned(), "is_pinned() is False after pin_memory()")
    require(torch.empty(4, pin_memory=True).is_pinned(), "torch.empty(pin_memory=True) gives memory that is not pinned")
    there = host.to(here.device, non_blocking=True)
    back = torch.zeros_like(host).pin_memory()
    back.copy_(there, non_blocking=True)
    here.module.synchronize()
    require(torch.equal(back, host), "numbers copied to the device and back without blocking are others")
    return ""


def random_state(here: Here) -> str:
    """Row 26."""
    source = torch if here.device_type == "cpu" else here.module
    source.manual_seed(7)
    state = source.get_rng_state()
    first = torch.rand(8, device=here.device).cpu()
    second = torch.rand(8, device=here.device).cpu()
    source.set_rng_state(state)
    again = torch.rand(8, device=here.device).cpu()
    require(torch.equal(first, again), "set_rng_state(get_rng_state()) does not bring the same random numbers again")
    require(not torch.equal(first, second), "the same random numbers come twice in a row")
    norms = torch._foreach_norm([torch.tensor([3.0, 4.0], device=here.device), torch.tensor([2.0], device=here.device)])
    got = [float(norm) for norm in norms]
    require(got == [5.0, 2.0], f"_foreach_norm of [3 4] and [2] is {got}")
    return ""


def statistics(here: Here) -> str:
    """Row 27."""
    source = torch.accelerator if hasattr(torch.accelerator, "memory_allocated") else here.module
    source.reset_peak_memory_stats()
    before = source.memory_allocated()
    tensor = torch.empty(1 << 22, dtype=torch.uint8, device=here.device)
    grown, most = source.memory_allocated() - before, source.max_memory_allocated() - before
    require(grown >= tensor.numel(), f"4 MiB were allocated, and memory_allocated() grew by {grown} bytes")
    del tensor
    require(most >= 1 << 22, f"4 MiB were allocated, and max_memory_allocated() grew by {most} bytes")
    require(source.memory_allocated() < before + grown, "memory_allocated() does not fall when memory is freed")
    return ""


def work_long(device: torch.device) -> None:
    """Queue work that takes some ten milliseconds on a fast device."""
    matrix = torch.ones(2048, 2048, device=device)
    for _ in range(30):
        matrix = matrix @ matrix * 0


def _streams_or_not_tried(here: Here) -> None:
    try:
        here.module.Stream()
    except Exception as error:
        raise NotTried(f"there are no streams (row 5): {type(error).__name__}") from None


def _host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned where that can be had: else a copy to it waits by itself."""
    host = torch.zeros(tensor.shape, dtype=tensor.dtype)
    try:
        return host.pin_memory()
    except Exception:
        return host


PROBES: dict[str, Probe] = {
    "1": module,
    "4": accelerator,
    "2": selecting,
    "3": current_device,
    "5": streams,
    "6": ordering,
    "7": events,
    "8": accelerator_stream,
    "25": pinned,
    "26": random_state,
    "27": statistics,
}
