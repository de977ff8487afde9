"""Probes of the device: its module, streams, memory, and the operators by which FSDP moves parameters.

A stream that only pretends to order work is seen where work takes time: side stream writes 1 after long work, and the
current stream, which was told to wait for it, reads 1, not the 0 from before.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.doctor.checks import NotTried, probe, probes_in, require

_NUMEL = 1 << 20


@dataclass(frozen=True)
class Here:
    """Where probes ask: the device type, its device and module, None where there is none, and the process group."""

    device_type: str
    process_group: str
    device: Any = None
    module: Any = None

    @classmethod
    def of(cls, device_type: str, process_group: str) -> Here:
        """What this process has of the type."""
        with suppress(RuntimeError):  # a type that torch has no name for
            return cls(device_type, process_group, torch.device(device_type), getattr(torch, device_type, None))
        return cls(device_type, process_group)

    def numbers(self, start: int, end: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Whole numbers from ``start`` to before ``end``, on the device."""
        return torch.arange(start, end).to(dtype).to(self.device)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Zeros on the device."""
        return torch.zeros(*shape, dtype=dtype, device=self.device)


@probe(
    "`fully_shard` and `init_device_mesh` find no module of the device: AttributeError on None",
    "call `torch._register_device_module(name, module)` when the plugin is imported",
    needs_device=False,
)
def device_module(here: Here) -> str:
    """the module `torch.<device>`."""
    found = getattr(torch, here.device_type, None)
    if found is None:
        raise AttributeError(f"torch has no attribute {here.device_type!r}")
    require(here.module is found, f"{here.device_type!r} is no device type that torch knows")
    return f"torch.{here.device_type}"


@probe(
    "making a mesh fails, or all ranks end up on one device; without a device nothing can be tried",
    "check driver and visible devices; define these functions in the device's module",
    needs_device=False,
)
def devices(here: Here) -> str:
    """`torch.<device>.is_initialized()`, `.device_count()` and `.set_device(index)`."""
    here.module.is_initialized()
    count = here.module.device_count()
    require(isinstance(count, int), f"device_count() is {count!r}, not a number")
    if count < 1:
        raise RuntimeError(f"torch.{here.device_type}.device_count() is {count}: no such device is visible here")
    here.module.set_device(0 if here.device_type != "cpu" else "cpu")
    return f"{count} × {here.device_type}"


@probe(
    "`fully_shard` without a mesh silently makes a mesh of CPUs",
    "check driver and visible devices; a PrivateUse1 backend's hooks must say `isAvailable`",
    on_cpu=False,
)
def accelerator(here: Here) -> str:
    """`torch.accelerator` sees the device."""
    count = here.module.device_count()
    seen = torch.accelerator.current_accelerator()
    if seen is None or not torch.accelerator.is_available():
        raise RuntimeError(f"torch.accelerator sees no device, torch.{here.device_type} sees {count}")
    require(seen.type == here.device_type, f"torch.accelerator sees {seen.type!r}, not {here.device_type!r}")
    counted = torch.accelerator.device_count()
    require(counted == count, f"torch.accelerator counts {counted} devices, torch.{here.device_type} {count}")
    return f"{count} × {seen.type}"


@probe(
    "the first `fully_shard` fails, or puts parameters on another device",
    "return the index as an int, the one that `set_device` was given",
    on_cpu=False,
)
def current_device(here: Here) -> None:
    """`torch.<device>.current_device()` gives the index that was set, and tensors are made there."""
    last = here.module.device_count() - 1
    for index in dict.fromkeys((last, 0)):
        here.module.set_device(index)
        got = here.module.current_device()
        require(type(got) is int and got == index, f"current_device() is {got!r} after set_device({index})")
        with FakeTensorMode():  # as DTensor works out sizes
            where = torch.empty(index + 1, device=here.device_type).device
        words = f"a tensor without memory made after set_device({index}) is on {where}"
        require(where.index == index, f"{words}: is_initialized() must be True by then")
        where = torch.empty(1, device=here.device_type).device
        require(where.index == index, f"a tensor made after set_device({index}) is on {where}")


@probe(
    "lazy initialisation fails with TypeError or AttributeError",
    "accept `priority`, and have `with torch.<device>.stream(s)` make s the current stream and undo it after",
    on_cpu=False,
)
def streams(here: Here) -> None:
    """`Stream()`, `Stream(priority=-1)`, `stream(…)` and `current_stream()`."""
    before = here.module.current_stream()
    for made in (here.module.Stream(), here.module.Stream(priority=-1)):
        with here.module.stream(made):
            inside = here.module.current_stream()
            require(inside == made, f"inside stream({made}) the current stream is {inside}")
        after = here.module.current_stream()
        require(after == before, f"after a block of stream() the current stream is {after}, not {before}")


@probe(
    "copies and offloaded gradients are read before they are there: wrong numbers, now and then",
    "make later work of the waiting stream wait on the device; a no-op is right only where streams do not run beside "
    "each other; `Event.record()` without a stream takes the current one",
    on_cpu=False,
)
def stream_order(here: Here) -> None:
    """`Stream.wait_stream`, `.wait_event` and `.record_event`, and `Event.record` and `.synchronize`, order work."""
    try:
        here.module.Stream()
    except Exception as error:
        raise NotTried(f"there are no streams (streams): {type(error).__name__}") from None
    work_long = _long_work(here)
    for name, wait in _WAITS.items():
        side, current, event = here.module.Stream(), here.module.current_stream(), here.module.Event()
        tensor = here.zeros(_NUMEL)
        side.wait_stream(current)
        with here.module.stream(side):
            work_long()
            tensor.fill_(1)
            event.record()
        wait(current, side, event)
        got = tensor.clone()
        here.module.synchronize()
        require(bool((got == 1).all()), f"after {name} the waiting stream read what was there before")


_WAITS: dict[str, Callable[[Any, Any, Any], object]] = {
    "wait_stream(side)": lambda current, side, event: current.wait_stream(side),
    "wait_event(side.record_event())": lambda current, side, event: current.wait_event(side.record_event()),
    "wait_event(event)": lambda current, side, event: current.wait_event(event),
    "event.synchronize()": lambda current, side, event: event.synchronize(),
}


#: Seconds for which a stream is to be busy; one product takes at least a tenth of that, but is not larger than this.
_LONG, _LARGEST = 0.02, 2048


def _long_work(here: Here) -> Callable[[], None]:
    """What queues work that takes so long, however fast the device is."""

    def multiplied(size: int, times: int) -> None:
        matrix = torch.ones(size, size, device=here.device)
        for _ in range(times):
            matrix = matrix @ matrix * 0

    def seconds(size: int) -> float:
        here.module.synchronize()
        started = time.perf_counter()
        multiplied(size, 1)
        here.module.synchronize()
        return time.perf_counter() - started

    size = 64
    seconds(size)  # the first product of a process may load its kernel
    while (took := seconds(size)) < _LONG / 10 and size < _LARGEST:
        size *= 2
    return functools.partial(multiplied, size, max(1, round(_LONG / took)))


@probe(
    "DTensors that are made at random, as by `reset_parameters()` after meta-device initialisation, fail or are alike",
    "keep a state of 16 bytes, the seed and then the offset, each a little-endian int64; have `manual_seed` set both, "
    "and drawing move the offset on",
    on_cpu=False,
)
def random_state(here: Here) -> None:
    """`torch.<device>.manual_seed`, `.get_rng_state` and `.set_rng_state`, with a state that DTensor can divide."""
    here.module.manual_seed(5)
    before = here.module.get_rng_state()
    require(before.dtype == torch.uint8, f"get_rng_state() has dtype {before.dtype}, not torch.uint8")
    require(before.numel() == 16, f"get_rng_state() has {before.numel()} bytes, not 16")
    seed, offset = before.cpu().view(torch.int64).tolist()
    require((seed, offset) == (5, 0), f"after manual_seed(5) the state is seed {seed}, offset {offset}, not 5 and 0")
    first = torch.rand(8, device=here.device).cpu()
    moved = here.module.get_rng_state().cpu().view(torch.int64)[1].item()
    require(moved > 0, "drawing eight numbers leaves the offset where it was")
    require(bool((torch.rand(8, device=here.device).cpu() != first).any()), "eight numbers are drawn twice in a row")
    here.module.set_rng_state(before)
    require(
        torch.equal(torch.rand(8, device=here.device).cpu(), first), "after set_rng_state() other numbers are drawn"
    )


@probe(
    "the first reshard fails: that is how FSDP frees unsharded parameters",
    "implement resizing of storage; for PrivateUse1 the hook `resizePrivateUse1Bytes`",
)
def storage_resizing(here: Here) -> None:
    """storage that can be resized to 0 and back."""
    tensor = torch.full((6,), 2.0, device=here.device)
    storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
    for wanted in (0, size, 0, size):
        storage.resize_(wanted)
        require(storage.size() == wanted, f"after resize_({wanted}) the storage has {storage.size()} bytes")
        require(tuple(tensor.shape) == (6,), f"after resize_({wanted}) a tensor of it has shape {tensor.shape}")
    tensor.fill_(3)
    _same("a tensor written after its storage was resized", tensor, [3.0] * 6)


@probe(
    "the first unshard or reduction fails: no kernel for this device",
    "register what these call: `_foreach_copy_` with casts, `split_with_sizes_copy(out=)`, `_chunk_cat(out=)`; FSDP's "
    "own are there for PrivateUse1 and torch's devices: another dispatch key must be added in torch, or by the plugin",
)
def fsdp_operators(here: Here) -> None:
    """FSDP's operators `fsdp::all_gather_copy_in`, `split_with_sizes_copy` and `chunk_cat`."""
    importlib.import_module("torch.distributed.fsdp")  # defines them
    operators = torch.ops.fsdp
    sources = [here.numbers(1, 3, torch.bfloat16), here.numbers(3, 6, torch.float16)]
    part, whole = operators.all_gather_copy_in(sources, here.zeros(10), [2, 3], 5, 1)
    _same("the input part that all_gather_copy_in gives", part, [1, 2, 3, 4, 5])
    _same("the output of all_gather_copy_in", whole, [0, 0, 0, 0, 0, 1, 2, 3, 4, 5])
    inside = part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    require(inside, "all_gather_copy_in gives an input that is no part of its output")
    outs = [here.zeros(2, 2), here.zeros(2, 3)]
    operators.split_with_sizes_copy(here.numbers(0, 10).view(2, 5), [2, 3], 1, out=outs)
    _same("split_with_sizes_copy", torch.cat([o.flatten() for o in outs]), [0, 1, 5, 6, 2, 3, 4, 7, 8, 9])
    out = here.zeros(2, 3)
    operators.chunk_cat([here.numbers(1, 4), here.numbers(4, 6)], 0, 2, out=out)
    _same("chunk_cat", out.flatten(), [1, 2, 4, 3, 0, 5])


def _same(what: str, got: Tensor, want: Sequence[float]) -> None:
    numbers = got.detach().float().cpu().tolist()
    require(numbers == [*map(float, want)], f"{what} is {numbers}, not {[*map(float, want)]}")


@probe(
    "`init_process_group` knows no such backend, or takes another for the device",
    "call `torch.distributed.Backend.register_backend(name, function, devices=['npu'])` when the plugin is imported, "
    "with a list: torch 2.13 reads the string 'npu' as devices n, p and u",
    needs_device=False,
)
def registration(here: Here) -> str:
    """the process-group backend is registered with torch under its name and for the device type."""
    name, device = here.process_group.lower(), here.device_type
    owners, able = dist.Backend.default_device_backend_map, dist.Backend.backend_capability
    if ":" in name:
        return f"{name!r} names a backend for each device"
    if name not in dist.Backend.backend_list:
        raise NotImplementedError(f"torch knows no backend {name!r}: {', '.join(dist.Backend.backend_list)}")
    letters = sorted(one for one, owner in owners.items() if len(one) == 1 and owner == name)
    require(not letters, f"it is registered for devices {', '.join(letters)}: `devices` was a string, not a list")
    known = able.get(name)
    require(known is None or device in known, f"it is registered for {known}, not for {device!r}")
    return "" if owners.get(device) == name else f"not the default for {device}: that is {owners.get(device)}"


PROBES = probes_in(globals())
