"""Bytes: how many a step has alive at once beyond what was there before it, and how many it communicates.

Two ranks, one layer of 8 bytes of parameters and a batch of next to nothing; a step that gathers, computes, reduces::

    alive     gather buffer 8, parameters +8 = 16, buffer freed = 8, gradients +8 = 16, reduce buffer +8 = 24, …   24
    sent      all-gather 8 (what all ranks give together), reduce-scatter 8

Memory is counted as the allocator gives and takes it back, so that nothing depends on how an implementation names its
tensors: with few rows of input, what is alive is unsharded parameters, their gradients, and the buffers of collectives.
All of it on torch's fake group, in one thread: what is alive is then decided by the implementation alone, and not by
when another thread lets go of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.training import SUBJECTS, Setup, Training, fake_ranks
from harness.vendor.load import load_implementation


class Costs(NamedTuple):
    """Of one step on one rank: bytes alive at the peak, collectives, and bytes of the larger end of each."""

    peak: int
    collectives: int
    sent: int


def costs(setup: Setup, size: int) -> dict[str, Costs]:
    """What a step of each subject costs on rank 0 of ``size``."""
    with fake_ranks(size) as mesh:
        return {name: _costs(Training(load_implementation(name), mesh, setup)) for name in SUBJECTS}


def _costs(training: Training) -> Costs:
    for _ in range(2):
        training.step()
    with _Collectives() as collectives:
        training.step()
    return Costs(peak_bytes(training), len(collectives.bytes), sum(collectives.bytes))


def peak_bytes(training: Training) -> int:
    """The most bytes that one step had allocated at once, beyond those from before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        training.step()
    assert seen.profiler is not None
    found = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]")
    assert changes, "torch's profiler has seen no allocation: it no longer calls them [memory]"
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


class _Collectives(TorchDispatchMode):
    """Notes the bytes of the larger end of each collective inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if func.namespace in ("c10d", "_c10d_functional") and not name.endswith(("::barrier", "::wait_tensor")):
            self.bytes.append(max(tensor.nbytes for tensor in _tensors(args)))
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
